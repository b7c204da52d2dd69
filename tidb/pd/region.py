"""PD's data about TiKV: regions, their replicas, and the nodes."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.tidb import pb
from sluice.tidb.codec.memcomparable import decode_bytes


@dataclass(frozen=True, slots=True)
class Peer:
    """A replica of a region. role: 0 voter, 1 learner, 2 incoming voter, 3 demoting voter."""

    id: int
    store_id: int
    role: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """A key range [start_key, end_key) with raw keys.

    An empty end_key is unbounded. leader may be unknown.
    """

    id: int
    start_key: bytes
    end_key: bytes
    conf_ver: int
    version: int
    peers: tuple[Peer, ...]
    leader: Peer | None

    def covers(self, key: bytes) -> bool:
        return self.start_key <= key and (not self.end_key or key < self.end_key)


@dataclass(frozen=True, slots=True)
class Store:
    """A TiKV node: `address` serves gRPC; state 0 up, 1 offline, 2 tombstone."""

    id: int
    address: str
    state: int
    version: str
    is_tiflash: bool = False


def region_from_pb(region: pb.metapb.Region, leader: pb.metapb.Peer | None) -> Region:
    """Return the Region of a message with memcomparable-encoded keys. CodecError if they aren't."""
    peers = tuple(Peer(peer.id, peer.store_id, peer.role) for peer in region.peers)
    return Region(
        id=region.id,
        start_key=decode_bytes(region.start_key, 0)[0] if region.start_key else b"",
        end_key=decode_bytes(region.end_key, 0)[0] if region.end_key else b"",
        conf_ver=region.region_epoch.conf_ver,
        version=region.region_epoch.version,
        peers=peers,
        leader=Peer(leader.id, leader.store_id, leader.role)
        if leader is not None and leader.id
        else None,
    )


def store_from_pb(store: pb.metapb.Store) -> Store:
    """Return the Store of a message."""
    is_tiflash = any(each.key == "engine" and "tiflash" in each.value for each in store.labels)
    return Store(store.id, store.address, store.state, store.version, is_tiflash)

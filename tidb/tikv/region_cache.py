"""The regions of keys and their leaders: a cache over PD, and reactions to region errors."""

from __future__ import annotations

import bisect
import threading

from sluice.tidb import pb
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.pd import PDClient, PDError, Peer, Region, region_from_pb


class RegionCache:
    """Thread-safe. Holds regions by start key, non-overlapping, and the addresses of stores."""

    def __init__(self, pd: PDClient) -> None:
        self._pd = pd
        self._lock = threading.Lock()
        self._starts: list[bytes] = []
        self._regions: dict[bytes, Region] = {}
        self._stores: dict[int, str] = {}

    def locate(self, key: bytes) -> Region:
        """Return the region of a raw key, from PD if it isn't known. Raises PDError."""
        with self._lock:
            found = self._find(key)
        if found is not None:
            return found
        region = self._pd.get_region(key)
        if not region.covers(key):
            raise PDError(
                f"PD named region {region.id} for key {key.hex()}, which lies outside of it"
            )
        with self._lock:
            self._insert(region)
        return region

    def address(self, store_id: int) -> str:
        """Return the address at which a store serves gRPC."""
        with self._lock:
            known = self._stores.get(store_id)
        if known is not None:
            return known
        store = self._pd.get_store(store_id)
        if store.state == pb.metapb.Tombstone or not store.address:
            raise PDError(f"store {store_id} is gone")
        with self._lock:
            self._stores[store_id] = store.address
        return store.address

    @staticmethod
    def leader_of(region: Region) -> Peer:
        """Return the peer to call: the leader, or while it isn't known the first voter."""
        if region.leader is not None:
            return region.leader
        for peer in region.peers:
            if peer.role == pb.metapb.Voter:
                return peer
        raise PDError(f"region {region.id} has no voting peer")

    def invalidate(self, region: Region) -> None:
        """Forget a region, so that PD is asked again."""
        with self._lock:
            self._remove(region)

    def forget_store(self, store_id: int) -> None:
        """Forget a store's address."""
        with self._lock:
            self._stores.pop(store_id, None)

    def switch_leader(self, region: Region, leader: Peer) -> None:
        """Record a region's new leader.

        A peer the cache doesn't know makes the whole region unknown.
        """
        with self._lock:
            current = self._regions.get(region.start_key)
            if current is None or current.id != region.id:
                return
            if leader.id not in {peer.id for peer in current.peers}:
                self._remove(current)
                return
            self._regions[region.start_key] = _with_leader(current, leader)

    def next_peer(self, region: Region) -> None:
        """Take the next voter for the leader, after a silent store: its answer names the leader."""
        asked = self.leader_of(region)
        voters = [peer for peer in region.peers if peer.role == pb.metapb.Voter]
        later = [peer for peer in voters if peer.id != asked.id]
        if not later:
            self.invalidate(region)
            return
        position = next((index for index, peer in enumerate(voters) if peer.id == asked.id), -1)
        self.switch_leader(region, voters[(position + 1) % len(voters)])

    def replace(self, old: Region, current: list[pb.metapb.Region]) -> bool:
        """Put in the regions that TiKV named with epoch_not_match.

        False if TiKV's are older than the cached one.
        """
        try:
            fresh = [region_from_pb(region, None) for region in current]
        except CodecError:
            self.invalidate(old)
            return True
        for region in fresh:
            if region.id == old.id and (
                region.conf_ver < old.conf_ver or region.version < old.version
            ):
                return False
        with self._lock:
            self._remove(old)
            for region in fresh:
                same_store = [
                    peer
                    for peer in region.peers
                    if old.leader and peer.store_id == old.leader.store_id
                ]
                self._insert(_with_leader(region, same_store[0]) if same_store else region)
        return True

    def _find(self, key: bytes) -> Region | None:
        position = bisect.bisect_right(self._starts, key) - 1
        if position < 0:
            return None
        region = self._regions[self._starts[position]]
        return region if region.covers(key) else None

    def _insert(self, region: Region) -> None:
        overlapping = [
            other
            for other in self._regions.values()
            if (not region.end_key or other.start_key < region.end_key)
            and (not other.end_key or region.start_key < other.end_key)
        ]
        for other in overlapping:
            self._remove(other)
        bisect.insort(self._starts, region.start_key)
        self._regions[region.start_key] = region

    def _remove(self, region: Region) -> None:
        current = self._regions.get(region.start_key)
        if current is not None and current.id == region.id:
            del self._regions[region.start_key]
            self._starts.remove(region.start_key)


def _with_leader(region: Region, leader: Peer) -> Region:
    return Region(
        region.id,
        region.start_key,
        region.end_key,
        region.conf_ver,
        region.version,
        region.peers,
        leader,
    )

"""Cut the stand-in cluster's key space into regions, and refuse requests as TiKV does.

TiKV refuses a request for the wrong piece. Bounds are memcomparable-encoded, as PD keeps them;
empty means unbounded.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace

from sluice.tidb import pb
from sluice.tidb.codec.memcomparable import decode_bytes, encode_bytes

_CONF_VER = 1


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of the key space, `start` <= encoded key < `end`, with one peer."""

    id: int
    start: bytes
    end: bytes
    version: int
    peer_id: int
    store_id: int

    def holds(self, encoded: bytes) -> bool:
        return self.start <= encoded and (not self.end or encoded < self.end)

    def peer(self) -> pb.metapb.Peer:
        return pb.metapb.Peer(id=self.peer_id, store_id=self.store_id)

    def meta(self) -> pb.metapb.Region:
        return pb.metapb.Region(
            id=self.id,
            start_key=self.start,
            end_key=self.end,
            region_epoch=pb.metapb.RegionEpoch(conf_ver=_CONF_VER, version=self.version),
            peers=[self.peer()],
        )


class RegionMap:
    """All regions, in key order.

    `splits` are raw keys at which the key space is cut from the start.
    """

    def __init__(self, store_id: int, splits: list[bytes]) -> None:
        self.store_id = store_id
        self._next_id = 2
        self._regions = [Region(self._id(), b"", b"", 1, self._id(), store_id)]
        self._by_id = {region.id: region for region in self._regions}
        for key in splits:
            self.split(key)

    def _id(self) -> int:
        self._next_id += 2
        return self._next_id

    def __len__(self) -> int:
        return len(self._regions)

    def split(self, raw_key: bytes) -> Region | None:
        """Cut the region that holds `raw_key` there.

        Both halves get a new epoch, so clients have to look again.

        Returns the region that was cut, None if there is a bound already.
        """
        key = encode_bytes(raw_key)
        at = self._position(key)
        whole = self._regions[at]
        if whole.start == key:
            return None
        version = whole.version + 1
        left = Region(self._id(), whole.start, key, version, self._id(), whole.store_id)
        self._regions[at : at + 1] = [left, replace(whole, start=key, version=version)]
        self._by_id[left.id], self._by_id[whole.id] = self._regions[at : at + 2]
        return whole

    def merge(self, region_id: int) -> tuple[Region, Region] | None:
        """Merge a region into the one behind it, which moves no keys of its own.

        Returns both as they were; None for the last region, and for one that is gone.
        """
        source = self._by_id.get(region_id)
        if source is None or not source.end:
            return None
        at = self._position(source.start)
        target = self._regions[at + 1]
        version = max(source.version, target.version) + 1
        merged = replace(target, start=source.start, version=version)
        self._regions[at : at + 2] = [merged]
        del self._by_id[source.id]
        self._by_id[merged.id] = merged
        return source, target

    def transfer(self, region_id: int, store_id: int) -> Region | None:
        """Make the peer at `store_id` lead a region; the epoch's version stays.

        Returns it as it was.
        """
        region = self._by_id.get(region_id)
        if region is None:
            return None
        moved = replace(region, peer_id=self._id(), store_id=store_id)
        self._regions[self._position(region.start)] = self._by_id[region_id] = moved
        return region

    def at(self, encoded: bytes) -> Region:
        """Return the region that holds an encoded key."""
        return self._regions[self._position(encoded)]

    def before(self, encoded: bytes) -> Region | None:
        """Return the region in front of the one that holds an encoded key."""
        at = self._position(encoded)
        return self._regions[at - 1] if at else None

    def by_id(self, region_id: int) -> Region | None:
        """Return the region with that id."""
        return self._by_id.get(region_id)

    def between(self, start: bytes, end: bytes, limit: int = 0) -> list[Region]:
        """Return the regions that overlap encoded [start, end), all or the first `limit`.

        An empty `end` means no end.
        """
        first = self._position(start)
        last = bisect.bisect_left(self._regions, end, key=_start) if end else len(self._regions)
        return self._regions[first : min(last, first + limit) if limit > 0 else last]

    def check(
        self, context: pb.tikv.Context, keys: list[bytes], store_id: int
    ) -> pb.errorpb.Error | None:
        """Return the region error of a request to a store for raw `keys`, None if it is right."""
        if context.peer.store_id != store_id:
            return pb.errorpb.Error(
                message=f"store not match {context.peer.store_id} != {store_id}",
                store_not_match=pb.errorpb.StoreNotMatch(
                    request_store_id=context.peer.store_id, actual_store_id=store_id
                ),
            )
        region = self.by_id(context.region_id)
        if region is None:
            return pb.errorpb.Error(
                message=f"region {context.region_id} is missing",
                region_not_found=pb.errorpb.RegionNotFound(region_id=context.region_id),
            )
        if region.store_id != store_id:
            return pb.errorpb.Error(
                message=f"peer is not leader for region {region.id}",
                not_leader=pb.errorpb.NotLeader(region_id=region.id, leader=region.peer()),
            )
        if context.peer.id != region.peer_id:
            return pb.errorpb.Error(
                message=f"mismatch peer id {context.peer.id} != {region.peer_id}",
                mismatch_peer_id=pb.errorpb.MismatchPeerId(),
            )
        if (context.region_epoch.conf_ver, context.region_epoch.version) != (
            _CONF_VER,
            region.version,
        ):
            return pb.errorpb.Error(
                message=f"current epoch of region {region.id} is conf_ver: {_CONF_VER}"
                f" version: {region.version}",
                epoch_not_match=self.epoch_not_match(region),
            )
        for key in keys:
            if not region.holds(encode_bytes(key)):
                return pb.errorpb.Error(
                    message=f"key {key.hex()} is not in region {region.id}",
                    key_not_in_region=pb.errorpb.KeyNotInRegion(
                        key=key, region_id=region.id, start_key=region.start, end_key=region.end
                    ),
                )
        return None

    def end_of(self, region_id: int) -> bytes:
        """Return the raw end key of a region, b"" if it is unbounded."""
        region = self.by_id(region_id)
        return decode_bytes(region.end)[0] if region and region.end else b""

    def start_of(self, region_id: int) -> bytes:
        """Return the raw start key of a region, b"" if it is unbounded."""
        region = self.by_id(region_id)
        return decode_bytes(region.start)[0] if region and region.start else b""

    def epoch_not_match(self, region: Region) -> pb.errorpb.EpochNotMatch:
        """Return the region and its left neighbour, which a split may have taken the key to."""
        left = self.before(region.start) if region.start else None
        found = [r.meta() for r in (left, region) if r is not None]
        return pb.errorpb.EpochNotMatch(current_regions=found)

    def _position(self, encoded: bytes) -> int:
        return bisect.bisect_right(self._regions, encoded, key=_start) - 1


def _start(region: Region) -> bytes:
    return region.start

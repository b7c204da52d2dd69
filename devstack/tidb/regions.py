"""Regions of the stand-in cluster: how its key space is cut, and how TiKV refuses a request for the wrong piece.

Bounds are memcomparable-encoded, as PD keeps them; empty means unbounded.
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
    """All regions, in key order. `splits` are raw keys at which the key space is cut from the start."""

    def __init__(self, store_id: int, splits: list[bytes]) -> None:
        self.store_id = store_id
        self._next_id = 2
        self._regions = [Region(self._id(), b"", b"", 1, self._id(), store_id)]
        for key in splits:
            self.split(key)

    def _id(self) -> int:
        self._next_id += 2
        return self._next_id

    def split(self, raw_key: bytes) -> None:
        """Cuts the region that holds `raw_key` there; both halves get a new epoch, so clients have to look again."""
        key = encode_bytes(raw_key)
        at = self._position(key)
        whole = self._regions[at]
        if whole.start == key:
            return
        version = whole.version + 1
        left = Region(self._id(), whole.start, key, version, self._id(), self.store_id)
        self._regions[at : at + 1] = [left, replace(whole, start=key, version=version)]

    def at(self, encoded: bytes) -> Region:
        """The region that holds an encoded key."""
        return self._regions[self._position(encoded)]

    def before(self, encoded: bytes) -> Region | None:
        """The region in front of the one that holds an encoded key."""
        at = self._position(encoded)
        return self._regions[at - 1] if at else None

    def by_id(self, region_id: int) -> Region | None:
        """The region with that id."""
        return next((region for region in self._regions if region.id == region_id), None)

    def between(self, start: bytes, end: bytes) -> list[Region]:
        """The regions that overlap encoded [start, end); an empty `end` means no end."""
        return [r for r in self._regions[self._position(start) :] if not end or r.start < end]

    def check(self, context: pb.tikv.Context, keys: list[bytes]) -> pb.errorpb.Error | None:
        """TiKV's check of a request for raw `keys`: None if it may be served, else the region error to answer."""
        if context.peer.store_id != self.store_id:
            return pb.errorpb.Error(
                message=f"store not match {context.peer.store_id} != {self.store_id}",
                store_not_match=pb.errorpb.StoreNotMatch(
                    request_store_id=context.peer.store_id, actual_store_id=self.store_id
                ),
            )
        region = self.by_id(context.region_id)
        if region is None:
            return pb.errorpb.Error(
                message=f"region {context.region_id} is missing",
                region_not_found=pb.errorpb.RegionNotFound(region_id=context.region_id),
            )
        if context.peer.id != region.peer_id:
            return pb.errorpb.Error(
                message=f"mismatch peer id {context.peer.id} != {region.peer_id}",
                mismatch_peer_id=pb.errorpb.MismatchPeerId(),
            )
        if (context.region_epoch.conf_ver, context.region_epoch.version) != (_CONF_VER, region.version):
            return pb.errorpb.Error(
                message=f"current epoch of region {region.id} is conf_ver: {_CONF_VER} version: {region.version}",
                epoch_not_match=pb.errorpb.EpochNotMatch(current_regions=self._around(region)),
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
        """The raw end key of a region, b"" if it is unbounded."""
        region = self.by_id(region_id)
        return decode_bytes(region.end)[0] if region and region.end else b""

    def start_of(self, region_id: int) -> bytes:
        """The raw start key of a region, b"" if it is unbounded."""
        region = self.by_id(region_id)
        return decode_bytes(region.start)[0] if region and region.start else b""

    def _around(self, region: Region) -> list[pb.metapb.Region]:
        """The region and its left neighbour, which a split may have taken the key to."""
        left = self.before(region.start) if region.start else None
        return [r.meta() for r in (left, region) if r is not None]

    def _position(self, encoded: bytes) -> int:
        return bisect.bisect_right(self._regions, encoded, key=lambda region: region.start) - 1

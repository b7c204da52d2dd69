"""Remember stretches of the value log that could not be read when it was indexed.

Whole transactions may have been in them. A damaged record that is in the index is missed when it is
read. One that was damaged before it was indexed leaves no trace there, so the stretch itself is
remembered, with the commit timestamps it may hide. TiDB asks for a commit_ts after the Prewrite was
acknowledged. So one that lay in the stretch is above every timestamp in front of it, and below the
commit_ts of every transaction that lies behind it altogether. Readers that must not miss a
transaction stop there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sluice.pump_service.store.records import MAX_TS
from sluice.pump_service.store.scan import ScanBatch
from sluice.pump_service.store.segment import RecordPointer
from sluice.tidb.binlog_kinds import COMMIT, PREWRITE

_GAP = struct.Struct("<IqqQQ")


class UnreadableRange(NamedTuple):
    """Describe a stretch that may hide commits with low < commit_ts < high.

    In the index: u32, i64, i64, u64, u64 LE.
    """

    fid: int
    begin: int
    size: int
    low: int
    high: int

    def hides(self, after: int, through: int) -> bool:
        """Return whether it may hide a commit in (after, through]."""
        return max(after, self.low) < min(through, self.high - 1)


def encode_ranges(gaps: list[UnreadableRange]) -> bytes:
    """Return them concatenated."""
    return b"".join(_GAP.pack(*gap) for gap in gaps)


def decode_ranges(data: bytes) -> list[UnreadableRange]:
    """Return the ranges that `encode_ranges` encoded."""
    return [UnreadableRange(*fields) for fields in _GAP.iter_unpack(data)]


class UnreadableRangeFinder:
    """Find unreadable ranges in a scan that begins at `position`.

    `low` is a timestamp in front of it, `size_of(fid)` a segment's bytes (0 if it is gone).
    """

    def __init__(self, position: RecordPointer, low: int, size_of: Callable[[int], int]) -> None:
        self._at, self._low, self._size_of = position, low, size_of
        self.found: list[UnreadableRange] = []
        self._behind: list[set[int]] = []
        """for each gap without a known end, the Prewrites that came behind it"""

    def see(self, batch: ScanBatch) -> bool:
        """Take the next batch; return whether unreadable bytes were in front of it."""
        known = len(self.found)
        self.reach(RecordPointer(batch.fid, int(batch.offsets[0])))
        self._bound(batch)
        self._low = max(self._low, int(batch.starts.max()), int(batch.commits.max()))
        self._at = RecordPointer(batch.fid, batch.end)
        return len(self.found) > known

    def reach(self, end: RecordPointer) -> None:
        """Record that nothing readable lies between the last batch and `end`."""
        for fid in range(self._at.fid, end.fid):
            self._add(fid, self._at.offset if fid == self._at.fid else 0, self._size_of(fid))
        self._add(end.fid, self._at.offset if end.fid == self._at.fid else 0, end.offset)
        self._at = max(self._at, end)

    def _add(self, fid: int, begin: int, end: int) -> None:
        if end > begin:
            self.found.append(UnreadableRange(fid, begin, end - begin, self._low, MAX_TS))
            self._behind.append(set())

    def _bound(self, batch: ScanBatch) -> None:
        for i, gap in enumerate(self.found):
            if gap.high < MAX_TS:
                continue
            behind = self._behind[i]
            behind.update(batch.starts[batch.tps == PREWRITE].tolist())
            commits = (batch.tps == COMMIT) & (batch.starts != batch.commits)
            whole = commits & np.fromiter(
                map(behind.__contains__, batch.starts.tolist()), np.bool_, len(batch.starts)
            )
            if whole.any():
                self.found[i] = gap._replace(high=int(batch.commits[whole].min()))
                self._behind[i] = set()

    def close(self, newest: int) -> None:
        """End the scan; no timestamp above `newest` had been issued when the log was written."""
        self.found = [
            gap._replace(high=min(gap.high, max(newest, self._low) + 1)) for gap in self.found
        ]

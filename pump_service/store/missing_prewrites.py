"""Find out why a Commit has no Prewrite in the index.

Usually no client ever sent it here. But it may have been unreadable when the value log was indexed,
or purged, or the index may have lost it. Then a committed transaction would silently be excluded.
TiDB asks for a commit_ts only after the Prewrite was acknowledged. So the Prewrite lies before its
Commit, in a segment whose highest timestamp is at least its start_ts. Few segments are scanned, and
a Prewrite found to be absent stays absent.
"""

from __future__ import annotations

import numpy as np

from sluice.pump_service.store.errors import CorruptRecordError
from sluice.pump_service.store.index import BinlogIndex
from sluice.pump_service.store.scan import scan_segment
from sluice.pump_service.store.segment import RecordPointer, Segment
from sluice.pump_service.store.sorter import LONG_TRANSACTION
from sluice.pump_service.store.value_log import ValueLog

_MAX_REMEMBERED = 10_000


class MissingPrewrites:
    """Remember absent Prewrites. Thread-safe."""

    def __init__(self, value_log: ValueLog, index: BinlogIndex) -> None:
        self._log, self._index = value_log, index
        self._proven: set[int] = set()

    def cause(self, start_ts: int, commit: RecordPointer) -> RecordPointer | None:
        """Search the value log for a transaction's Prewrite, whose Commit lies at `commit`.

        Returns the place of unreadable bytes that may have been it. Returns None if it never came
        here, or if an operator has given those bytes up. Raises IndexDamagedError if it is in the
        value log, CorruptRecordError if it may have been purged.
        """
        if start_ts in self._proven:
            return None
        if start_ts + LONG_TRANSACTION <= self._index.gc_ts():
            raise CorruptRecordError(
                str(self._log.path_of(commit.fid)),
                commit.offset,
                f"the Prewrite of transaction {start_ts}, whose Commit is here, may have been"
                " removed by garbage collection: a reader needs a new full copy of the data",
            )
        skipped: list[RecordPointer] = []
        for segment in self._candidates(start_ts, commit):
            self._scan_segment(segment, start_ts, commit, skipped)
        if skipped:
            return next(
                (place for place in reversed(skipped) if not self._log.given_up(*place)), None
            )
        if len(self._proven) < _MAX_REMEMBERED:
            self._proven.add(start_ts)
        return None

    def _candidates(self, start_ts: int, commit: RecordPointer) -> list[Segment]:
        segments = [s for s in self._log.segments() if s.fid <= commit.fid]
        first = next((i for i, s in enumerate(segments) if s.max_ts >= start_ts), len(segments))
        return segments[max(0, first - 1) :]  # max_ts doesn't count a damaged one

    def _scan_segment(
        self, segment: Segment, start_ts: int, commit: RecordPointer, skipped: list[RecordPointer]
    ) -> None:
        def skip(part: Segment, begin: int, size: int) -> None:
            skipped.append(RecordPointer(part.fid, begin))
            self._log.record_skipped(part, begin, size)

        end = commit.offset if segment.fid == commit.fid else segment.size
        for batch in scan_segment(segment, 0, end, skip):
            found = np.flatnonzero((batch.tps == 0) & (batch.starts == start_ts))
            if len(found):
                self._index.report_damage(
                    f"the Prewrite of transaction {start_ts} is at offset"
                    f" {int(batch.offsets[found[0]])} of {segment.path} and not in the index"
                )

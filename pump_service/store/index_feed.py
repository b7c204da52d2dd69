"""Enter records into the index, push them to the sorter, and save how far both are."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sluice.pump_service.store.binlog_head import stored_head
from sluice.pump_service.store.errors import CorruptRecordError
from sluice.pump_service.store.index import BinlogIndex, Ints
from sluice.pump_service.store.index_position import IndexPosition
from sluice.pump_service.store.scan import ScanBatch
from sluice.pump_service.store.segment import RecordPointer
from sluice.pump_service.store.sorter import Sorter, SorterBatch
from sluice.pump_service.store.unreadable_ranges import UnreadableRange, UnreadableRangeFinder
from sluice.pump_service.store.value_log import ValueLog
from sluice.tidb.binlog_kinds import COMMIT

_CATCH_UP_GROUP_RECORDS = 16_384
_SYNC_INTERVAL_BYTES = 256 << 20
"""Bytes of the value log that a start indexes again at most; they take about a second."""


@dataclass(frozen=True, slots=True)
class IndexerOptions:
    """Set the indexer's limits.

    `capacity` is how many records may be queued. `save_interval_s` and `sync_interval_s` are the
    shortest times between saves of the position, and between syncs of it.
    """

    capacity: int
    save_interval_s: float
    sync_interval_s: float


class IndexFeed:
    """The half of the Indexer that changes the index. One thread at a time calls it."""

    def __init__(
        self,
        value_log: ValueLog,
        index: BinlogIndex,
        sorter: Sorter,
        options: IndexerOptions,
        begin: RecordPointer,
    ) -> None:
        self._log, self._index, self._sorter = value_log, index, sorter
        self._save_interval, self._sync_interval = options.save_interval_s, options.sync_interval_s
        self._applied = begin  # the last record that is in the index
        self._saved: tuple[RecordPointer, int] = sorter.handled()
        self._saved_long = sorter.long_transactions()
        self._saved_at = self._synced_at = time.monotonic()
        self._synced: IndexPosition | None = None
        self._replay = False
        """The records read back were written before this start."""
        self.gaps: list[UnreadableRange] = index.gaps()
        """Ranges of the value log that couldn't be read when they were indexed.

        The list is replaced, never changed.
        """

    def _forget_position(self) -> None:
        """Begin with an empty index at the value log's first record."""
        self._applied = self._log.first
        # Save nothing of the former index's position: the new one is far from the sorter's.
        self._saved, self._saved_long, self._synced = (RecordPointer(0, 0), 0), {}, None
        self.gaps = []

    def _apply(self, group: list[SorterBatch]) -> None:
        if not group:
            return
        batch = group[0]
        if len(group) > 1:
            batch = SorterBatch(
                batch.fid,
                [x for b in group for x in b.tps],
                [x for b in group for x in b.starts],
                [x for b in group for x in b.commits],
                [x for b in group for x in b.offsets],
            )
        known, begun = self._known(batch)
        self._index.put_batch(*batch)
        self._sorter.push(batch, replay=self._replay, known=known, begun=begun)
        self._applied = RecordPointer(batch.fid, batch.offsets[-1])

    def _known(self, batch: SorterBatch) -> tuple[set[int], set[int]]:
        """Return which Commits at or below readers' positions the index knows.

        Returns the commit timestamps of the batch that are indexed already, and the start_ts of
        others whose Prewrite is indexed.
        """
        top = max(self._sorter.max_commit_ts, self._sorter.passed)
        known, begun = set[int](), set[int]()
        if self._replay or min(filter(None, batch.commits), default=top + 1) > top:
            return known, begun
        for tp, start, commit in zip(batch.tps, batch.starts, batch.commits, strict=True):
            if tp != COMMIT or start == commit or commit > top:
                continue
            if self.holds(start, commit):
                known.add(commit)
            elif self._index.get(start) is not None:
                begun.add(start)
        return known, begun

    def holds(self, start: int, commit: int) -> bool:
        """Return whether the index leads to that transaction's Commit."""
        pointer = self._index.get(commit, start)
        if pointer is None or self._index.is_captured:
            return pointer is not None
        try:
            return stored_head(self._log.read(pointer)) == (COMMIT, start, commit)
        except CorruptRecordError:
            return False

    def _enter(self, batch: ScanBatch, keep: Ints) -> None:
        """Index the records of `keep` that were read back, then push them to the sorter."""
        for begin in range(0, len(keep), _CATCH_UP_GROUP_RECORDS):
            part = keep[begin : begin + _CATCH_UP_GROUP_RECORDS]
            columns = (
                batch.tps[part],
                batch.starts[part],
                batch.commits[part],
                batch.offsets[part],
            )
            if self._replay:
                self._index.put_arrays(batch.fid, *columns)
                self._sorter.push_arrays(batch.fid, *columns)
            else:
                missed = SorterBatch(batch.fid, *(column.tolist() for column in columns))
                known, begun = self._known(missed)
                self._index.put_arrays(batch.fid, *columns)
                self._sorter.push(missed, known=known, begun=begun)
            self._applied = RecordPointer(batch.fid, int(batch.offsets[part[-1]]))

    def _finder(self, position: RecordPointer) -> UnreadableRangeFinder:
        handled, top = self._sorter.handled()
        low = top if handled <= position and position.offset else 0

        def size_of(fid: int) -> int:
            segment = self._log.segment(fid)
            return 0 if segment is None else segment.size

        return UnreadableRangeFinder(position, low, size_of)

    def _keep_gaps(self, known: list[UnreadableRange], finder: UnreadableRangeFinder) -> None:
        """Save the gaps before anything behind them counts as indexed."""
        places = {(gap.fid, gap.begin) for gap in finder.found}
        gaps = [gap for gap in known if (gap.fid, gap.begin) not in places] + finder.found
        gaps = [gap for gap in gaps if self._log.segment(gap.fid) is not None]
        self._index.save_gaps(gaps)
        self.gaps = gaps

    def _save(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if not self._index.is_complete or (
            not force and now - self._saved_at < self._save_interval
        ):
            return
        # Read after the position: a transaction may be listed too early, never too late.
        handled, long = self._sorter.handled(), self._sorter.long_transactions()
        if handled != self._saved or long != self._saved_long:
            self._index.save_handled(*handled, None if long == self._saved_long else long)
            self._saved, self._saved_long = handled, long
        self._saved_at = now
        self._save_synced(IndexPosition(self._applied, *handled, long), now, force=force)

    def _save_synced(self, position: IndexPosition, now: float, *, force: bool) -> None:
        last = self._synced
        if position == last:
            return
        recent = last is not None and now - self._synced_at < self._sync_interval
        if (
            last is not None
            and recent
            and not force
            and self._log.distance(last.head, position.head) < _SYNC_INTERVAL_BYTES
        ):
            return
        self._index.save_synced(position)
        self._synced, self._synced_at = position, now

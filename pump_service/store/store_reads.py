"""Read a store: how far it is, and transactions in commit order."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa

from sluice.pump_service.store import pull
from sluice.pump_service.store.binlog_head import stored_head
from sluice.pump_service.store.collector import GarbageCollector
from sluice.pump_service.store.errors import (
    CapturedStoreError,
    CorruptRecordError,
    StoreClosedError,
    WindowPurgedError,
)
from sluice.pump_service.store.index import BinlogIndex
from sluice.pump_service.store.indexer import Indexer
from sluice.pump_service.store.late import LateCommit, LateCommits
from sluice.pump_service.store.records import PulledBinlog, WindowReach
from sluice.pump_service.store.segment import RecordPointer
from sluice.pump_service.store.small_window import SmallWindow, SmallWindows
from sluice.pump_service.store.sorter import Sorter
from sluice.pump_service.store.value_log import ValueLog
from sluice.pump_service.store.window_reader import WindowReader
from sluice.pump_service.store.writer import Writer
from sluice.tidb.binlog_kinds import PREWRITE

_FENCE_TIMEOUT_S = 5.0
_SMALL_PULL, _PULL_PAUSE_S = 1000, 0.02
"""A live reader that finds fewer transactions than this waits so long: looking after each write
would cost more than the writes do.
"""


class StoreReads:
    """The reading half of a Store, which opens the parts named here and closes them."""

    is_captured: bool
    _log: ValueLog
    _index: BinlogIndex
    _sorter: Sorter
    _indexer: Indexer
    _writer: Writer
    _late: LateCommits
    _reader: WindowReader
    _small: SmallWindows
    _collector: GarbageCollector
    _closing: threading.Event

    # -- positions

    @property
    def max_commit_ts(self) -> int:
        """Return the timestamp through which every commit is in the index.

        Readers may read up to it.
        """
        return self._sorter.max_commit_ts

    @property
    def gc_ts(self) -> int:
        """Return the timestamp through which everything may have been purged."""
        return self._collector.gc_ts

    def barrier(self, ts: int, timeout_s: float) -> int:
        """Wait until every commit through `ts` can be read, at most `timeout_s`.

        Return max_commit_ts.

        It sends a mark behind everything written so far. Where records were held back, or the index
        has time, this thread writes and indexes them, which the timeout doesn't count. Once
        everything before the mark has its outcome, max_commit_ts is at least `ts`. PD must have
        issued `ts` before this call (see docs/explanation/no-loss.md), or it would hide commits.
        A captured store sends no mark: its commits come later than PD's timestamps.
        """
        if self.max_commit_ts < ts and not self.is_captured:
            self._writer.mark(ts)
        return self._sorter.wait_for(ts, timeout_s)

    def await_newer(self, ts: int, timeout_s: float) -> bool:
        """Return whether a commit above `ts` has come, waiting up to `timeout_s` for one.

        It may not be readable yet.
        """
        return self._sorter.await_newer(ts, timeout_s)

    @property
    def stored_ts(self) -> int:
        """Return the highest timestamp in the value log, 0 of an empty one."""
        return max(segment.max_ts for segment in self._log.segments())

    @property
    def is_empty(self) -> bool:
        """Return whether this data directory never held a record, as far as its value log tells."""
        return self._log.first.fid == 0 and self._log.end == RecordPointer(0, 0)

    def all_matched(self) -> bool:
        """Return whether every submitted Prewrite, also one being written, has its outcome."""
        # Checked in the order in which records move: one that left a place is found at a later one.
        return self._writer.idle and self._indexer.idle and self._sorter.open_count == 0

    def has_nothing_after(self, lo: int, passing_ts: int = 0) -> bool:
        """Return whether every acknowledged transaction has its outcome, none above `lo`.

        It doesn't wait or read the disk: False if that isn't known so. It holds for transactions
        acknowledged before this call and written since the store was opened. A reader that gets
        True has everything through `passing_ts`. A captured store never knows it.
        """
        if (
            self.is_captured
            or self._closing.is_set()
            or lo < self.gc_ts
            or self._indexer.gaps
            or not self.all_matched()
        ):
            return False
        return self._sorter.pass_at_rest(passing_ts, lo)

    def mark_read_through(self, ts: int) -> None:
        """Record that a reader has everything through `ts`, also without a mark.

        A commit that comes below it is late. A captured store returns nothing beyond max_commit_ts.
        """
        if ts > self._sorter.passed and not self.is_captured:
            self._sorter.passed = ts

    def late_behind(self, ts: int) -> list[LateCommit]:
        """Return late commits at or below a reader's position (TSO).

        They came after readers had passed them.
        """
        return self._late.at_or_below(ts)

    def _record_late(self, found: list[tuple[int, int]]) -> None:
        passed_ts = max(self._sorter.max_commit_ts, self._sorter.passed)
        self._late.add([LateCommit(commit, start, passed_ts) for start, commit in found])

    def is_open(self, start_ts: int) -> bool:
        """Return whether this Prewrite waits for its verdict."""
        return self._sorter.is_open(start_ts)

    def holds(self, start_ts: int, commit_ts: int) -> bool:
        """Return whether that transaction's Commit can be read."""
        return self._indexer.holds(start_ts, commit_ts)

    def prewrite_of(self, start_ts: int) -> bytes | None:
        """Return the payload of that Prewrite; None if it isn't here or can't be read."""
        try:
            payload = self.lookup(start_ts)
        except CorruptRecordError:
            return None
        return (
            payload
            if payload is not None and stored_head(payload)[:2] == (PREWRITE, start_ts)
            else None
        )

    def wait_caught_up(self, timeout_s: float) -> bool:
        """Wait until nothing has to be indexed again after a start; return False on timeout."""
        return self._indexer.wait_caught_up(timeout_s)

    # -- reading

    def bounds(self, lo: int, hi: int, max_transactions: int, max_bytes: int) -> WindowReach:
        """Return how far a window that begins at `lo` may reach.

        That is the largest hi' <= min(hi, max_commit_ts) such that (lo, hi'] stays within both
        limits, with its transactions and bytes. One transaction always fits. hi' is lo if nothing
        is readable yet. Raises WindowPurgedError if `lo` is below what has been purged.
        """
        self._check_purged(lo)
        hi = min(hi, self.max_commit_ts)
        if hi <= lo:
            return WindowReach(lo, 0, 0)
        found = self._reader.bounds(lo, hi, max_transactions, max_bytes)
        self._check_purged(lo)  # or records removed meanwhile aren't counted
        return found

    def small_window(
        self, lo: int, hi: int, max_transactions: int, max_bytes: int
    ) -> SmallWindow | None:
        """Return bounds and transactions of (lo, hi] at once, at a fraction of the cost.

        None if unusual.

        None means that the window is not small, exceeds a limit, or is unusual in any way. Then
        `bounds` and `read_window` tell. Raises WindowPurgedError as `bounds` does.
        """
        self._check_purged(lo)
        hi = min(hi, self.max_commit_ts)
        if hi <= lo or self._indexer.gaps:
            return None
        found = self._small.read(lo, hi, max_transactions, max_bytes)
        self._check_purged(lo)  # or records removed meanwhile are missing
        return found

    def settled_window(  # noqa: PLR0913 the window, its limits, and what becomes of it
        self,
        lo: int,
        hi: int,
        passed_ts: int,
        max_transactions: int,
        max_bytes: int,
        *,
        is_passing: bool = False,
    ) -> SmallWindow | None:
        """Return all of (lo, hi] that was acknowledged before this call, without a mark at `hi`.

        It includes all that may commit there. None as in `small_window`, or if a Prewrite waits for
        its outcome once everything is indexed. It holds for what was written since the store was
        opened. `passed_ts` is any TSO that PD has issued, which goes behind what was written. With
        `is_passing` the reader that gets the window has everything through `hi` then. Always None
        in a captured store.
        """
        if self.is_captured:
            return None
        self._writer.mark(passed_ts)
        if not self.all_matched() or not self._sorter.pass_at_rest(hi if is_passing else 0):
            return None
        return self.small_window(lo, hi, max_transactions, max_bytes)

    def read_window(self, lo: int, hi: int, *, strict: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the committed transactions of (lo, hi] in WINDOW_SCHEMA, a few MiB per batch.

        They have ascending commit_ts and no fakes. Bad records are excluded, counted and logged, or
        with `strict` raise CorruptRecordError. Raises WindowPurgedError as `bounds`; ValueError if
        hi is beyond max_commit_ts, because the window isn't complete yet.
        """
        self._check_purged(lo)
        top = self.max_commit_ts
        if hi > top:
            raise ValueError(
                f"the window ({lo}, {hi}] isn't complete yet: it ends beyond max_commit_ts {top}"
            )
        return self._read(lo, hi, strict=strict)

    def _read(self, lo: int, hi: int, *, strict: bool) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._reader.read(lo, hi, strict=strict):
                # gcTS moves before anything is removed, so up to here the batch is whole
                self._check_purged(lo)
                yield batch
                lo = batch.column(0)[-1].as_py()
        except CorruptRecordError:
            self._check_purged(lo)  # it may have been removed meanwhile
            raise
        self._check_purged(lo)

    def pull(self, after_ts: int, stop: threading.Event) -> Iterator[PulledBinlog]:
        """Yield committed transactions as merged Binlogs, and fake binlogs, above after_ts.

        They have ascending commit_ts. The stream follows new writes until `stop` is set or the
        store closes; 0 begins with the oldest there is. Raises WindowPurgedError, also later, if
        the reader is behind what has been purged; CorruptRecordError at the first unreadable
        record; MissedCommitError if a commit came below this reader's position.
        """
        if self.is_captured:
            raise CapturedStoreError(
                "this pump captures changes from TiKV: it has no binlogs to pull"
            )
        count = self._late.count
        if after_ts > 0:
            self._check_purged(after_ts)
            self._late.check(after_ts)
        return self._pull(after_ts if after_ts > 0 else self.gc_ts, stop, count)

    def _pull(self, after_ts: int, stop: threading.Event, late: int) -> Iterator[PulledBinlog]:
        while not stop.is_set() and not self._closing.is_set():
            through = self._sorter.wait_for(after_ts + 1, 0.1)
            self._late.check_since(after_ts, late)
            if through <= after_ts:
                continue
            count = 0
            try:
                for entity in pull.entities(self._reader, after_ts, through):
                    self._check_purged(after_ts)
                    yield entity
                    after_ts = entity.commit_ts
                    count += 1
                    if stop.is_set():
                        return
                self._check_purged(after_ts)
            except CorruptRecordError:
                self._check_purged(after_ts)
                raise
            except StoreClosedError:
                return
            after_ts = through
            if count < _SMALL_PULL:
                stop.wait(_PULL_PAUSE_S)

    def lookup(self, ts: int) -> bytes | None:
        """Return the payload of the record whose key is `ts`; None if there is none.

        The key is start_ts of a Prewrite, commit_ts of all else. Of captured transactions that
        share a commit_ts it is the first. Raises CorruptRecordError if the record can't be read.
        """
        if self.is_captured:
            _, fids, offsets = self._index.range(ts - 1, ts, 1)
            return (
                self._log.read(RecordPointer(int(fids[0]), int(offsets[0]))) if len(fids) else None
            )
        pointer = self._index.get(ts)
        return None if pointer is None else self._log.read(pointer)

    def _check_purged(self, after_ts: int) -> None:
        if self._closing.is_set():
            raise StoreClosedError("the store is closed: nothing can be read any more")
        gc_ts = self._collector.gc_ts
        if after_ts < gc_ts:
            raise WindowPurgedError(after_ts, gc_ts)

    def all_indexed(self) -> bool:
        """Wait until the sorter knows everything written before this call.

        False if the index is behind.
        """
        indexed = threading.Event()
        self._writer.fence(indexed)
        return indexed.wait(_FENCE_TIMEOUT_S)

    def decided_through(self, ts: int) -> int | None:
        """Return the largest timestamp <= `ts` through which outcomes are known.

        Every transaction acknowledged before this call either has its outcome here or commits
        later, if at all. `ts` must come from PD. None if the index is behind. In a captured store
        it is max_commit_ts.
        """
        if self.is_captured:
            return min(ts, self.max_commit_ts)
        if not self.all_indexed():
            return None
        oldest = self._sorter.smallest_open()
        return min(ts, oldest) if oldest else ts

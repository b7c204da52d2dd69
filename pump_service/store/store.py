"""Take what TiDB sends, and return transactions in commit order."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from sluice.pump_service.store import pull
from sluice.pump_service.store.binlog_head import encode_outcome, stored_head
from sluice.pump_service.store.collector import GarbageCollector
from sluice.pump_service.store.data_format import lock_directory, open_format, refuse_newer
from sluice.pump_service.store.errors import (
    CapturedStoreError,
    CorruptRecordError,
    InvalidRecordError,
    NoSpaceError,
    StoreClosedError,
    WindowPurgedError,
)
from sluice.pump_service.store.index import BinlogIndex
from sluice.pump_service.store.indexer import Indexer, IndexerOptions
from sluice.pump_service.store.late import LateCommit, LateCommits
from sluice.pump_service.store.options import MAX_QUEUED, StoreOptions
from sluice.pump_service.store.outcome_resolver import OutcomeResolver, ResolverTimes
from sluice.pump_service.store.records import (
    MAX_TS,
    PulledBinlog,
    Record,
    Resolver,
    StoreStats,
    WindowReach,
)
from sluice.pump_service.store.recovery import begin_of_indexing
from sluice.pump_service.store.segment import RecordPointer
from sluice.pump_service.store.small_window import SmallWindow, SmallWindows
from sluice.pump_service.store.sorter import Sorter
from sluice.pump_service.store.space import SpaceWatch
from sluice.pump_service.store.value_log import ValueLog
from sluice.pump_service.store.verdict_checks import OutcomeChecks
from sluice.pump_service.store.window_reader import WindowReader
from sluice.pump_service.store.writer import Done, Writer
from sluice.tidb.binlog_kinds import COMMIT, PREWRITE, ROLLBACK

log = logging.getLogger(__name__)

_FENCE_TIMEOUT_S = 5.0
_SMALL_PULL, _PULL_PAUSE_S = 1000, 0.02
"""A live reader that finds fewer transactions than this waits so long: looking after each write
would cost more than the writes do.
"""


class Store:
    """Serve one data directory. All public methods are thread-safe."""

    def __init__(self, data_dir: Path, options: StoreOptions, resolver: Resolver | None) -> None:
        """Use `Store.open`."""
        self.data_dir, self.options = data_dir, options
        refuse_newer(data_dir)
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = lock_directory(data_dir)
        try:
            self.is_captured = open_format(data_dir, is_captured=options.is_captured)
            self._log = ValueLog(data_dir / "value", options.segment_limit, sync=options.sync_log)
            self._index = BinlogIndex(data_dir / "kv", options.kv, is_captured=self.is_captured)
            standing = self._index.position()
            self._log.cut_torn_end(self._index.latest())
            begin = begin_of_indexing(self._log, self._index, standing)
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._sorter = Sorter(
            standing.max_commit_ts,
            standing.handled,
            standing.long_transactions,
            is_captured=self.is_captured,
        )
        self._indexer = Indexer(
            self._log,
            self._index,
            self._sorter,
            IndexerOptions(
                min(options.kv_chan_cap, MAX_QUEUED),
                options.save_interval_s,
                options.sync_interval_s,
            ),
            begin,
        )
        self.timings = self._log.timings
        self._writer = Writer(
            self._log,
            self._indexer,
            options.slow_write_threshold,
            options.stop_write_at_available_space,
            self.timings,
        )
        self._sorter.on_wait = self._hurry
        self._late = LateCommits(data_dir)
        self._sorter.on_late = self._record_late
        indexer = self._indexer
        self._reader = WindowReader(self._log, self._index, lambda: indexer.gaps)
        self._small = SmallWindows(self._log, self._index)
        self._collector = GarbageCollector(
            self._log, self._index, self._sorter, self._indexer, self._reader
        )
        self._space = SpaceWatch(
            data_dir, options.stop_write_at_available_space, options.space_check_interval_s
        )
        self._resolver = (
            None
            if resolver is None
            else OutcomeResolver(
                self._sorter,
                resolver,
                self.lookup,
                self._write_outcome,
                ResolverTimes(options.resolve_after_s, options.resolve_retry_s),
            )
        )
        self._checks = None if resolver is None else OutcomeChecks(self, resolver)
        self._gc_lock = threading.Lock()
        self._closing = threading.Event()
        self._close_lock = threading.Lock()
        self._closed = False

    @classmethod
    def open(
        cls,
        data_dir: str | os.PathLike[str],
        options: StoreOptions,
        resolver: Resolver | None = None,
    ) -> Store:
        """Open or create a pump's data directory, the original's included, and resume from it.

        What is in the value log but not known to be indexed is indexed again, in the background if
        it takes longer than `recovery_wait_s`; writes are accepted meanwhile. Raises NewerDataError
        if a newer version wrote it, StoreLockedError if another process has the directory, OSError
        if it can't be read or written.
        """
        store = cls(Path(data_dir), options, resolver)
        store._indexer.start()
        store._writer.start()
        store._space.start()
        if store._resolver is not None:
            store._resolver.start()
        if store._checks is not None:
            store._checks.start()
        if not store._indexer.wait_caught_up(options.recovery_wait_s):
            log.info(
                "%s: the index is still being caught up with the value log in the background",
                data_dir,
            )
        return store

    # -- writing

    def submit(
        self, records: Sequence[Record], done: Done, *, here: bool = False, later: bool = False
    ) -> None:
        """Store records, in this order. Thread-safe.

        It returns at once; with `here` it may wait for the disk if no other thread writes. With
        `later` the records may wait for the next ones, until a reader wants them or `flush` is
        called.

        The writer thread calls `done(None)` once every record is on disk (fdatasync), and
        `done(error)` if none of them may be acknowledged: NoSpaceError (only fake binlogs are
        accepted), InvalidRecordError, StoreClosedError, StoreFailedError. `done` may be called
        within this call if nothing was queued, must be quick, and must not raise.
        """
        size = 0
        fakes_only = True
        for tp, start, commit, payload in records:
            if not (0 <= start <= MAX_TS and 0 <= commit <= MAX_TS) or (
                start == 0 and (commit == 0 or tp == PREWRITE)
            ):
                done(
                    InvalidRecordError(
                        f"a binlog of type {tp} with start_ts {start} and commit_ts {commit} can't"
                        " be stored: timestamps are above 0 and below 2**63"
                    )
                )
                return
            if start != commit:
                fakes_only = False
                if self.is_captured and (tp != PREWRITE or commit < start):
                    done(
                        InvalidRecordError(
                            f"a binlog of type {tp} with start_ts {start} and commit_ts {commit} is"
                            " no whole transaction, and others can't be among captured ones"
                        )
                    )
                    return
            size += len(payload)
        if not fakes_only and not self._space.writable:
            done(NoSpaceError(self._space.available, self.options.stop_write_at_available_space))
            return
        self._writer.submit(records, size, done, here=here, later=later)

    def submit_checked(self, records: Sequence[Record], done: Done, peer: str) -> None:
        """Submit records with an outcome that may contradict an earlier one.

        TiKV is asked about it first.

        Never waits. `peer` is the client's address, for logs.
        """
        if self._checks is None:
            self.submit(records, done)
        else:
            self._checks.submit(records, done, peer)

    def flush(self) -> None:
        """Write records that wait for the next ones.

        May wait for the disk if no other thread writes.
        """
        self._writer.flush()

    def _hurry(self) -> None:
        """Stop holding records back: a caller waits for them."""
        self._writer.flush()
        self._indexer.hurry()

    def _write_outcome(self, record: Record, done: Done) -> None:
        # An outcome of a few bytes is written even on a nearly full disk: readers, and so garbage
        # collection, advance only with it.
        self._writer.submit([record], len(record.payload), done)

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

    def decide(self, start_ts: int, commit_ts: int) -> None:
        """End an open Prewrite as an operator decides.

        Committed at `commit_ts`, or rolled back if 0.

        Raises KeyError if it isn't open, ValueError for an impossible commit_ts, and what `submit`
        gives if it can't be written.
        """
        if not self._sorter.is_open(start_ts):
            raise KeyError(f"no unfinished transaction began at {start_ts}")
        if commit_ts and commit_ts <= start_ts:
            raise ValueError(
                f"transaction {start_ts} can't have committed at {commit_ts}, before it began"
            )
        tp = COMMIT if commit_ts else ROLLBACK
        written = threading.Event()
        answer: list[BaseException | None] = []

        def done(error: BaseException | None) -> None:
            answer.append(error)
            written.set()

        self._write_outcome(
            Record(tp, start_ts, commit_ts, encode_outcome(tp, start_ts, commit_ts)), done
        )
        written.wait()
        if answer[0] is not None:
            raise answer[0]
        log.warning(
            "transaction %d is decided by an operator: commit_ts %d (0: rolled back)",
            start_ts,
            commit_ts,
        )

    # -- garbage collection

    def begin_at(self, ts: int) -> None:
        """Refuse readers that want commits at or before `ts`, where a capture begins.

        Call it before the first record: a capture never gets what was committed before.
        """
        with self._gc_lock:
            self._collector.begin_at(ts)

    def gc(self, ts: int) -> int:
        """Purge what was committed at or before `ts`, in the calling thread (seconds to minutes).

        Nothing happens if `ts` is not above the last one or not below max_commit_ts. Open Prewrites
        lower it. Segments and index entries are kept 600 s longer, and as long as a later commit
        needs them. While the index is behind what has been written, open Prewrites aren't known,
        and nothing happens. Returns gcTS.
        """
        with self._gc_lock:
            if not self.all_indexed():
                log.warning("garbage collection is skipped: the index is behind the value log")
            else:
                self._collector.collect(ts)
            return self.gc_ts

    # -- the end

    def stats(self) -> StoreStats:
        """Return a snapshot for metrics."""
        writer, space = self._writer, self._space
        return StoreStats(
            records=writer.records,
            bytes=writer.bytes,
            transactions=self._sorter.transactions,
            batches=writer.batches,
            write_seconds=writer.write_seconds,
            fsync_seconds=self._log.fsync_seconds,
            max_commit_ts=self.max_commit_ts,
            gc_ts=self.gc_ts,
            done_gc_ts=self._collector.done_gc_ts,
            pending_prewrites=self._sorter.open_count,
            oldest_pending_ts=self._sorter.oldest_open(),
            queued_bytes=writer.queued_bytes,
            queued_for_index=self._indexer.queued,
            catching_up=self._indexer.catching_up,
            slow_index_count=self._indexer.slow_count,
            slow_index_ends=self._indexer.slow_ends,
            catch_ups=self._indexer.catch_ups,
            recoveries=self._indexer.recoveries,
            index_errors=self._indexer.errors,
            resolver_queries=self._resolver.queries if self._resolver else 0,
            contradictions=self._checks.contradictions if self._checks else 0,
            late_commits=self._sorter.late_commits,
            skipped_bytes=self._log.skipped_bytes,
            corrupt_records=self._log.corrupt_records,
            missing_prewrites=self._reader.missing_prewrites,
            deleted_keys=self._collector.deleted_keys,
            capacity_bytes=space.capacity,
            available_bytes=space.available,
            value_log_bytes=self._log.disk_bytes,
            segments=len(self._log.segments()),
            writable=space.writable and writer.failure is None and not self._closed,
            failed=writer.failure is not None,
        )

    def close(self) -> None:
        """Reject new records, make the queued ones durable and indexed, and release the directory.

        It saves the position, and seals the segment if that is worth it. Readers end. A second call
        does nothing.
        """
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            self._closing.set()
            self._collector.stop()
            if self._checks is not None:
                self._checks.close()
            if self._resolver is not None:
                self._resolver.close()
            self._writer.close()
            indexed = self._indexer.close(30)
            self._sorter.close()
            self._space.close()
            with self._gc_lock:
                if self._writer.failure is None:
                    try:
                        self._log.close()
                    except OSError as error:
                        # Every record is durable; without a footer the next start reads the file.
                        log.error(
                            "%s: the last segment could not be sealed: %s", self.data_dir, error
                        )
                if indexed:
                    self._index.close()
            os.close(self._lock_fd)

"""Take what TiDB sends, and return transactions in commit order."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from sluice.pump_service.store.binlog_head import encode_outcome
from sluice.pump_service.store.collector import GarbageCollector
from sluice.pump_service.store.data_format import lock_directory, open_format, refuse_newer
from sluice.pump_service.store.errors import InvalidRecordError, NoSpaceError
from sluice.pump_service.store.index import BinlogIndex
from sluice.pump_service.store.index_feed import IndexerOptions
from sluice.pump_service.store.indexer import Indexer
from sluice.pump_service.store.late import LateCommits
from sluice.pump_service.store.missing_outcomes import OutcomeResolver, ResolverTimes
from sluice.pump_service.store.options import MAX_QUEUED, StoreOptions
from sluice.pump_service.store.records import MAX_TS, Record, Resolver, StoreStats
from sluice.pump_service.store.recovery import begin_of_indexing
from sluice.pump_service.store.small_window import SmallWindows
from sluice.pump_service.store.sorter import Sorter
from sluice.pump_service.store.space import SpaceWatch
from sluice.pump_service.store.store_reads import StoreReads
from sluice.pump_service.store.value_log import ValueLog
from sluice.pump_service.store.verdict_checks import DoubtfulRecords, OutcomeChecks
from sluice.pump_service.store.window_reader import WindowReader
from sluice.pump_service.store.writer import Done, Writer
from sluice.tidb.binlog_kinds import COMMIT, PREWRITE, ROLLBACK

log = logging.getLogger(__name__)


class Store(StoreReads):
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
            position = self._index.position()
            self._log.cut_torn_end(self._index.latest())
            begin = begin_of_indexing(self._log, self._index, position)
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._sorter = Sorter(
            position.max_commit_ts,
            position.handled,
            position.long_transactions,
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

    def submit_checked(
        self, records: Sequence[Record], done: Done, peer: str, doubtful: DoubtfulRecords
    ) -> None:
        """Submit records that may contradict what is here.

        TiKV is asked about an outcome that does. A Prewrite that does is refused: `done` gets a
        RefusedRecordsError then, and the others are written. Never waits. `peer` is the client's
        address, for logs.
        """
        if self._checks is None:
            self.submit(records, done)
        else:
            self._checks.submit(records, done, peer, doubtful)

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
        if record.tp == COMMIT and self.holds(record.start_ts, record.commit_ts):
            log.warning(
                "a Prewrite of transaction %d came again behind its Commit %d: later readers get"
                " the later one",
                record.start_ts,
                record.commit_ts,
            )
        self._writer.submit([record], len(record.payload), done)

    # -- operators

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

    @property
    def is_writable(self) -> bool:
        """Return whether Prewrites are taken: there is space, and the store hasn't failed."""
        return self._space.writable and self._writer.failure is None and not self._closed

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
            writable=self.is_writable,
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

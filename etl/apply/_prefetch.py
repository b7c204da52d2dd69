"""Collect landed windows into batches, and have each prepared while the one before is written."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import astuple, replace

import pyarrow as pa

from sluice.etl.apply._adaptive_limits import BatchLimits
from sluice.etl.apply._batch import (
    END_OF_BATCH,
    ApplyLog,
    ByteBoundedQueue,
    WaitStopped,
    WindowBatch,
    overrides_for,
)
from sluice.etl.apply._conflicts import ConflictGuard
from sluice.etl.apply._window_selector import WindowSelector
from sluice.etl.changes.planning import (
    BatchPayload,
    InFlightPayload,
    RecountRange,
    SharedPayload,
    WindowPayload,
)
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.steps import ChangeError, CommitDetail, Step, lists_from_batches, to_batches
from sluice.etl.downstream import Checkpoint
from sluice.relay import AlignedChunk, Part, WindowRecord

Prepare = Callable[[BatchPayload], Iterator[pa.RecordBatch]]
"""Prepares windows as record batches in STEP_SCHEMA."""

_MAX_QUEUED_BYTES = 64 * 2**20
_STEP_OVERHEAD_BYTES = 1000
"""Estimated memory of a step beside its payload."""
_IDLE_CHECK_INTERVAL_S = 0.3
"""How often an idle run checks for the end of the run and for other writers."""


class BatchPrefetcher:
    """Prepare the windows after a checkpoint in a thread of its own.

    Prepared steps wait in memory, bounded by `_MAX_QUEUED_BYTES`.
    """

    def __init__(  # noqa: PLR0913 what the loop knows
        self,
        relay: ApplyLog,
        prepare: Prepare,
        limits: BatchLimits,
        checkpoint: Checkpoint,
        until_ts: int | None = None,
        conflicts: ConflictGuard | None = None,
    ) -> None:
        """Start the thread at `checkpoint`; it selects no window after `until_ts` (TSO).

        `conflicts`: what knows which changes have lost.

        The in-flight batch of `checkpoint` is the first batch. Batches that begin before its
        `safe_until` are prepared for safe mode. Neither is cut, as parts may be downstream.
        """
        self._relay = relay
        self._prepare = prepare
        self._checkpoint = checkpoint
        self._conflicts = conflicts
        self._slot = threading.Semaphore(1)
        self._queue = ByteBoundedQueue(_MAX_QUEUED_BYTES)
        self._stopped = threading.Event()
        self._next = WindowSelector(
            relay, limits, checkpoint.in_flight, until_ts, self._stopped, checkpoint.safe_until
        )
        self._changes_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="sluice-prepare", daemon=True)
        self._thread.start()

    @property
    def changes_since(self) -> float | None:
        """Return the time.monotonic() since which a batch with changes waits, or None."""
        return self._changes_since

    def items(self, over: Callable[[], bool]) -> Iterator[WindowBatch | AlignedChunk]:
        """Yield batches in order until `over`, and each aligned chunk after the batch before it.

        The batch ends at the chunk. The caller consumes a batch's steps before it asks for the
        next item.
        """
        while not over():
            started = time.perf_counter()
            try:
                item = self._queue.get(_IDLE_CHECK_INTERVAL_S)
            except queue.Empty:
                continue
            if isinstance(item, AlignedChunk):
                yield item
                continue
            self._slot.release()
            self._changes_since = None
            if isinstance(item, BaseException):
                raise item
            item.idle_s += time.perf_counter() - started
            yield item

    def stop(self) -> None:
        """End the thread. After 30 s a running job is left to itself: it writes nothing."""
        self._stopped.set()
        self._next.wake()
        self._queue.close()
        self._slot.release()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            position = self._checkpoint.commit_ts
            for aligned_chunk in self._next.chunks_at(position):
                self._queue.put(aligned_chunk)
            while True:
                self._slot.acquire()
                windows, hi = self._next.next_batch(position)
                if not windows:
                    return
                agenda = self._next.pending_chunks
                batch = WindowBatch(
                    windows,
                    position,
                    hi,
                    tables_under_repair=agenda.tables_under_repair,
                    _queue=self._queue,
                    _relay=self._relay,
                )
                if any(window.changes or window.ddls for window in windows):
                    self._changes_since = time.monotonic()
                self._queue.put(batch)
                with contextlib.closing(self._steps(batch)) as prepared:
                    # Decoded in this thread, while the writer waits for the server's answers.
                    lists = lists_from_batches(prepared)
                    while True:
                        started = time.perf_counter()
                        steps = next(lists, None)
                        batch.prepare_s += time.perf_counter() - started
                        if steps is None:
                            break
                        self._queue.put(
                            steps, sum(_STEP_OVERHEAD_BYTES + len(step.payload) for step in steps)
                        )
                self._queue.put(END_OF_BATCH)
                position = hi
                for aligned_chunk in agenda.pending:
                    if aligned_chunk.at_ts == hi:
                        self._queue.put(aligned_chunk)
        except WaitStopped:
            return
        except BaseException as error:
            with contextlib.suppress(WaitStopped):
                self._queue.put(error)
        finally:
            self._next.close()

    def _steps(self, batch: WindowBatch) -> Generator[pa.RecordBatch, None, None]:
        windows = batch.windows
        batch.overrides = overrides_for(self._relay, batch)
        if any(window.changes or window.ddls for window in windows):
            yield from self._prepare(self._describe(batch))
        else:
            yield from to_batches(iter([Step(CommitDetail(windows[-1].schema_version), batch.hi)]))

    def _describe(self, batch: WindowBatch) -> BatchPayload:
        described = BatchPayload.from_windows(batch.windows, batch.after_ts, batch.hi).decided(
            batch.overrides
        )
        in_flight = self._checkpoint.in_flight
        is_begun = in_flight is not None and batch.after_ts < in_flight.until
        safe = batch.after_ts < self._checkpoint.safe_until
        decides = self._conflicts is not None and self._conflicts.last_wins
        batch.lost = (
            self._conflicts.lost(batch.after_ts, batch.hi)
            if self._conflicts is not None and decides
            else None
        )
        shared = self._checkpoint.shared if batch.after_ts == self._checkpoint.commit_ts else None
        return replace(
            described,
            safe=safe,
            tables_under_repair=batch.tables_under_repair,
            begun=SharedPayload(*astuple(shared)) if shared is not None else None,
            in_flight=(
                InFlightPayload(in_flight.until, frozenset(in_flight.left_out))
                if in_flight is not None and is_begun
                else None
            ),
            behind=self._parts_since_ddl_start(described.windows),
            counted_before=self._recount_ranges(described.windows[0]),
            cut_tables=None if safe or is_begun else self._next.cut_tables,
            contested=decides,
            lost=batch.lost or (),
        )

    def _parts_since_ddl_start(
        self, windows: Sequence[WindowPayload]
    ) -> dict[int, tuple[tuple[Part, ...], ...]]:
        """Return, by commit_ts of DDL that began before its window, the parts in between.

        They are those of the windows between. Older windows may be removed; they hold nothing of
        the DDL then.
        """
        return {
            commit_ts: tuple(
                _masked_alike(w, window).parts
                for w in self._relay.windows(ts, window.lo)
                if w.lo < window.lo
            )
            for window in windows
            for commit_ts, ts in window.ddl_started_before().items()
        }

    def _recount_ranges(self, window: WindowPayload) -> tuple[RecountRange, ...]:
        """Return the ranges that `prepare` counts again: from a DDL job to `window`'s begin."""
        found = []
        for job_id, began_ts in window.recount_from().items():
            windows = [
                w for w in self._relay.windows(began_ts, window.after_ts) if w.lo < window.after_ts
            ]
            at = next(
                (
                    (i, ddl.commit_ts)
                    for i, w in enumerate(windows)
                    for ddl in RecordedSchema.from_window(w).ddls
                    if ddl.job_id == job_id
                ),
                None,
            )
            if at is not None:
                parts = tuple(part for w in windows[at[0] :] for part in w.parts)
                found.append(RecountRange(job_id, at[1], parts))
        return tuple(found)


def _masked_alike(before: WindowRecord, window: WindowPayload) -> WindowRecord:
    """Return an earlier window. Raises ChangeError if its values are masked otherwise."""
    tables = RecordedSchema.from_window(before).tables
    for table_id, table in window.schema.tables.items():
        known = tables.get(table_id)
        if known and table and known.landed_masks != table.landed_masks:
            raise ChangeError(
                f"DDL that drops partitions of {table.full_name} began while its values were masked"
                f" otherwise in the relay log, in the window behind {before.lo}",
                hint=(
                    f"execute the statement and copy the table again: `sluice ddl replace`, `sluice"
                    f" backfill --table {table.full_name}`"
                ),
            )
    return before

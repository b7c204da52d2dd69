"""A backfill at work: chunk after chunk is cut, appointed, read and handed to apply.

While one chunk is read the one before is being written, and the next has its aligned chunk
already. A chunk that comes to nothing, whatever the reason, is appointed again, smaller if it took
too long.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import SluiceError, ours
from sluice.etl.changes.formats.key_ranges import in_range
from sluice.etl.changes.masks import masks_of
from sluice.etl.changes.rules import ReplicationRules
from sluice.etl.copy.backfill.chunk_cutter import ChunkCutter
from sluice.etl.copy.backfill.chunk_scheduler import AlignedChunkScheduler
from sluice.etl.copy.backfill.downstream_session import BackfillDownstream
from sluice.etl.copy.backfill.extent import is_extent_known, planned_work
from sluice.etl.copy.backfill.plan import BackfillPlan, BackfillTablePlan
from sluice.etl.copy.backfill.progress_state import BackfillChunk, BackfillState, BackfillStateFile
from sluice.etl.copy.backfill.reader import ReadChunk, ReadRequest, ReadResult
from sluice.etl.copy.backfill.request import BackfillRequest
from sluice.etl.copy.backfill.table_key import range_key
from sluice.etl.copy.backfill.table_repairs import TableRepairs
from sluice.etl.copy.backfill.throttle import AdaptiveChunkSize, RowRateLimiter
from sluice.etl.copy.backfill.upstream_catalog import UpstreamCatalog
from sluice.etl.copy.errors import BackfillError
from sluice.relay.aligned_chunks import AlignedChunk, AlignedChunks, ChunkReady
from sluice.relay.jobs import JobCounts, JobRun, StopRequested
from sluice.relay.storage import Storage
from sluice.tidb.backoff import doubled
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table

log = logging.getLogger("sluice.backfill")

_MAX_CHUNK_BYTES = 24 << 20
"""Size of one chunk at most."""
_MAX_ATTEMPTS = 30
"""Attempts at one chunk."""
_WAIT_LOG_DELAY_S = 3.0
_POLL_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class BackfillEndpoints:
    """The endpoints of a backfill. `read` is called by a thread of its own."""

    upstream: UpstreamCatalog
    downstream: BackfillDownstream
    aligned_chunks: AlignedChunks
    storage: Storage
    read: ReadChunk
    rules: ReplicationRules = field(default_factory=ReplicationRules)


@dataclass(slots=True)
class _ActiveChunk:
    """A chunk with its aligned chunk.

    `read` once its rows are ready, `trouble` if nothing came of it.
    """

    chunk: BackfillChunk
    made: AlignedChunk
    table: Table
    read: ReadResult | None = None
    failure: str = ""
    shrink: Callable[[], None] | None = None
    """Makes the next chunks smaller."""


class BackfillJob:
    """One run of a job, done by `work`; if it ends early, nothing waits for its leftovers."""

    def __init__(
        self,
        request: BackfillRequest,
        plan: BackfillPlan,
        sides: BackfillEndpoints,
        job: str,
        run: JobRun,
    ) -> None:
        self._request = request
        self._plan = plan
        self._endpoints = sides
        self._job = job
        self._run = run
        self._scheduler = AlignedChunkScheduler(
            sides.aligned_chunks, job, sides.upstream.now, sides.downstream
        )
        self._file = BackfillStateFile(sides.storage, job)
        self._progress_state: BackfillState = self._file.load(len(plan.tables))
        self._size = AdaptiveChunkSize()
        self._is_known = is_extent_known(plan.tables, request.where)
        self._rate = RowRateLimiter(request.rows_per_second)
        self._repairs = TableRepairs(job, request.mode, sides.aligned_chunks, self._scheduler, run)
        self._cutter = ChunkCutter(sides.upstream, plan, self._progress_state, self._max_rows)
        self._active: deque[_ActiveChunk] = deque()
        self._attempts: Counter[int] = Counter()
        self._reading: Future[None] | None = None
        self.warnings: list[str] = []

    @property
    def result(self) -> dict[str, Any]:
        """Return what was done so far, by table, as JSON values."""
        return {
            "mode": self._request.mode,
            "tables": self._progress_state.results(self._plan.tables),
            "warnings": list(self.warnings),
        }

    def work(self) -> None:
        """Work until every chunk is done.

        Raises StopRequested, BackfillError, and what the upstream's and the downstream's clients
        raise.
        """
        self._run.set_totals(
            self._progress_state.progress(self._plan.tables, is_known=self._is_known)
        )
        self._repairs.begin_all(self._plan.tables, self._progress_state.tables)
        for made in self._scheduler.orphaned():
            self._finish_orphaned(made)
        with ThreadPoolExecutor(1, thread_name_prefix="backfill read") as pool:
            try:
                self._work(pool)
            except StopRequested:
                self._finish_ready()
                raise
            finally:
                self._release()

    def _work(self, pool: ThreadPoolExecutor) -> None:
        ahead: _ActiveChunk | None = None
        while True:
            self._run.check_order()
            current, ahead = ahead or self._schedule(), None
            if current is None:
                if self._active:
                    self._finish(self._active[0])
                elif all(state.is_over for state in self._progress_state.tables):
                    return
                continue
            reading = self._reading = pool.submit(self._read, current)
            while self._active[0] is not current:
                self._finish(self._active[0])
            ahead = self._schedule()
            reading.result()
            self._after_read(current)

    def _release(self) -> None:
        """Give up the open chunks, except those whose rows are ready for the apply process."""
        given_up = []
        for hand in self._active:
            with contextlib.suppress(SluiceError, OSError):
                if self._scheduler.give_up(hand.made, "the job has ended"):
                    given_up.append(hand.made)
        if self._reading is not None:
            wait([self._reading])
        for made in given_up:
            with contextlib.suppress(SluiceError, OSError):
                self._scheduler.remove(made)

    def _finish_ready(self) -> None:
        """Finish the chunks whose rows are ready, unless applying takes too long."""
        with contextlib.suppress(StopRequested):
            for hand in [hand for hand in self._active if hand.read is not None]:
                self._finish(hand)

    # Cutting, appointing

    def _schedule(self) -> _ActiveChunk | None:
        """Schedule the next chunk as an aligned chunk; None if there is none at the moment."""
        while (wait_s := self._rate.wait_s()) > 0:
            if self._active:
                return None
            self._run.check_order()
            time.sleep(min(wait_s, _POLL_INTERVAL_S))
        chunk = self._cutter.reopen(self._busy()) or self._next()
        if chunk is None:
            return None
        table = self._cutter.definition(chunk.table)
        if table is None:
            self._dropped(chunk.table)
            return None
        self._file.keep(self._progress_state)
        plan = self._plan.tables[chunk.table]
        key = range_key(table)
        condition = chunk.condition or (
            in_range(key, chunk.low, chunk.high) if chunk.low or chunk.high else ""
        )
        made = self._scheduler.make(
            AlignedChunk(
                0,
                self._job,
                chunk.number,
                table.id,
                table.schema_name,
                table.name,
                self._request.mode,
                condition,
                tuple(column.name for column in key) if chunk.low or chunk.high else (),
                listed=bool(self._request.where),
                is_whole=self._is_whole(plan),
            )
        )
        hand = _ActiveChunk(chunk, made, table)
        self._active.append(hand)
        return hand

    def _busy(self) -> set[int]:
        return {hand.chunk.number for hand in self._active}

    def _max_rows(self) -> int:
        return self._rate.limit(self._size.rows)

    def _next(self) -> BackfillChunk | None:
        for place, (plan, state) in enumerate(
            zip(self._plan.tables, self._progress_state.tables, strict=True)
        ):
            if state.is_cut:
                continue
            table = self._cutter.definition(place)
            if table is None:
                self._dropped(place)
                continue
            if not state.is_begun:
                self._begin(plan, table)
                state.is_begun = True
                state.low = plan.low
            self._run.doing(plan.name)
            return self._cutter.next_chunk(place, table)
        return None

    def _begin(self, plan: BackfillTablePlan, table: Table) -> None:
        if table.id != plan.table_id:  # truncated since it was planned
            self._repairs.begin(plan, table.id)
        if plan.is_created and folded(plan.target) not in self._endpoints.downstream.columns():
            self.warnings += self._endpoints.downstream.create_table(
                table, self._endpoints.upstream.definitions
            )

    def _is_whole(self, plan: BackfillTablePlan) -> bool:
        return not (self._request.where or plan.low or plan.high or plan.only)

    def _dropped(self, place: int) -> None:
        """End a table that was dropped upstream: replication drops it downstream, too."""
        state, plan = self._progress_state.tables[place], self._plan.tables[place]
        busy = self._busy()
        for number in [
            n
            for n, chunk in self._progress_state.open.items()
            if chunk.table == place and n not in busy
        ]:
            del self._progress_state.open[number]
        state.is_cut = True
        if (
            not any(chunk.table == place for chunk in self._progress_state.open.values())
            and not state.is_over
        ):
            self._end(place)
            self.warnings.append(f"{plan.name} was dropped upstream meanwhile")

    # Reading

    def _read(self, hand: _ActiveChunk) -> None:
        """Read the chunk, and mark it as ready.

        It runs in a thread of its own; an error is noted, and reported by `_look_at`.
        """
        try:
            self._scheduler.wait_for(hand.made.at_ts)
            self._read_at(hand)
        except Exception as error:
            self._scheduler.give_up(hand.made, f"it could not be read: {error}")
            failure = ours(error)
            if not failure.transient:
                raise
            hand.read, hand.failure = None, str(failure)

    def _read_at(self, hand: _ActiveChunk) -> None:
        made = hand.made
        table = self._cutter.definition(hand.chunk.table, made.at_ts)
        if table is None or table.id != hand.table.id:
            self._scheduler.give_up(made, "the table is gone")
            hand.failure = "the table was dropped or truncated meanwhile"
            return
        path = f"jobs/{self._job}/rows/{made.at_ts}"
        conditions = [
            made.condition or "TRUE",
            *([f"({self._request.where})"] if self._request.where else []),
        ]
        selection = self._endpoints.rules.filters.row_selection(table)
        if selection is not None:
            conditions.append(selection.sql())
        most = _MAX_CHUNK_BYTES if range_key(table) and not hand.chunk.condition else 0
        narrowed = self._endpoints.rules.shaped(table)
        found = self._endpoints.read(
            ReadRequest(made.at_ts, narrowed, " AND ".join(conditions), path, most)
        )
        if not found.complete:
            self._scheduler.give_up(made, f"it has more than {most} bytes")
            hand.failure = f"the chunk has more than {most >> 20} MiB"
            hand.shrink = self._size.was_large
            self._remove_files(found)
            return
        hand.read = found
        ready = ChunkReady(table.to_json(), made.at_ts, found.loads, masks_of(narrowed))
        outcome = self._scheduler.settle(made, ready)
        if not isinstance(outcome, ChunkReady):
            hand.read, hand.failure = None, f"applying went on without it: {outcome.why}"
            hand.shrink = self._size.was_late
            self._remove_files(found)

    def _after_read(self, hand: _ActiveChunk) -> None:
        """Charge the rate for a chunk that was read; schedule a failed one again."""
        if hand.read is not None:
            self._rate.used(max(hand.read.rows, 1))
            return
        self._active.remove(hand)
        self._scheduler.remove(hand.made)
        self._retry(hand.chunk, hand.failure, hand.shrink)

    def _retry(
        self, chunk: BackfillChunk, why: str, shrink: Callable[[], None] | None = None
    ) -> None:
        log.info("chunk %d of %s again: %s", chunk.number, self._plan.tables[chunk.table].name, why)
        if shrink is not None:
            shrink()
        self._attempts[chunk.number] += 1
        if self._attempts[chunk.number] >= _MAX_ATTEMPTS:
            raise BackfillError(
                f"{self._plan.tables[chunk.table].name}: a chunk failed {_MAX_ATTEMPTS}"
                f" times, the last time because: {why}",
                hint="remove that cause, then `sluice jobs resume` continues",
            )
        time.sleep(doubled(self._attempts[chunk.number], 0.05, 2.0))

    # What became of it

    def _finish(self, hand: _ActiveChunk) -> None:
        """Wait for what apply makes of a chunk that is ready."""
        assert hand.read is not None
        found = self._scheduler.result(hand.made, self._waiting)
        self._active.remove(hand)
        if found is not None and not found.declined:
            took_ms = hand.read.read_ms + found.write_ms
            self._size.took(hand.read.rows, took_ms, is_selected=bool(self._request.where))
            self._note(hand.chunk, hand.read, found)
        self._scheduler.remove(hand.made)
        self._remove_files(hand.read)
        if found is None:
            self._retry(hand.chunk, "the checkpoint passed it", self._size.was_late)
        elif found.declined:
            if not found.is_passing:
                raise BackfillError(
                    found.declined, hint="remove that cause, then `sluice jobs resume` continues"
                )
            self._retry(hand.chunk, found.declined)

    def _note(self, chunk: BackfillChunk, read: ReadResult, found: Any) -> None:
        plan, state = self._plan.tables[chunk.table], self._progress_state.tables[chunk.table]
        self._progress_state.open.pop(chunk.number, None)
        before = self._work_of(chunk.table)
        state.add(found, read.bytes)
        self._attempts.pop(chunk.number, None)
        if state.is_cut and not any(
            other.table == chunk.table for other in self._progress_state.open.values()
        ):
            self._end(chunk.table)
        self._file.keep(self._progress_state)
        self._run.did(plan.name, self._counts(chunk.table, before, found.rows, read.bytes))

    def _counts(self, place: int, before: tuple[int, int], rows: int, size: int) -> JobCounts:
        """Return what a chunk counts as; `before`: `_work_of` its table before it was counted."""
        if not self._is_known:
            return JobCounts(rows, size, 1)
        share, extra = (now - was for now, was in zip(self._work_of(place), before, strict=True))
        if not share:  # there are more rows than was estimated, and 0 would mean their size
            share, extra = 1, -1
        return JobCounts(rows, size, 1, share, extra)

    def _work_of(self, place: int) -> tuple[int, int]:
        state, plan = self._progress_state.tables[place], self._plan.tables[place]
        return planned_work(plan, rows=state.counts["rows"], is_over=state.is_over)

    def _end(self, place: int) -> None:
        self._progress_state.tables[place].is_over = True
        self._repairs.end(self._plan.tables[place])

    def _waiting(self, seconds: float) -> None:
        self._run.check()
        if seconds > _WAIT_LOG_DELAY_S:
            self._run.doing(
                "waiting for applying to come to the chunk: does the pipeline run? `sluice status`"
                " shows it"
            )
            self._run.check_order()

    def _finish_orphaned(self, made: AlignedChunk) -> None:
        """Finish a chunk of an earlier process; its rows are ready for the apply process."""
        found = self._scheduler.result(made, self._waiting)
        chunk = self._progress_state.open.get(made.number)
        if chunk is not None and found is not None and not found.declined:
            self._note(chunk, ReadResult((), complete=True, read_ms=0), found)
        self._scheduler.remove(made)

    def _remove_files(self, read: ReadResult) -> None:
        for load in read.loads:
            self._endpoints.storage.remove(load.path)

"""A backfill at work: chunk after chunk is cut, appointed, read and handed to apply.

While one chunk is read the one before is being written, and the next has its appointment already. A chunk that comes
to nothing, whatever the reason, is appointed again, smaller if it took too long.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from errors import Signal, SluiceError, ours
from etl.backfill.appointing import Appointing
from etl.backfill.downstream_side import DownstreamSide
from etl.backfill.errors import BackfillError
from etl.backfill.frontier import Chunk, Frontier, FrontierFile
from etl.backfill.pace import ChunkSize, RowRate
from etl.backfill.plan import BackfillPlan, TablePlan
from etl.backfill.reader import ChunkRead, ReadOrder
from etl.backfill.reads import ReadChunk
from etl.backfill.request import BackfillRequest
from etl.backfill.table_key import range_key
from etl.backfill.tables import UpstreamTables
from etl.formats.key_ranges import in_range
from relay.appointments import COMPARE, Appointment, Appointments, Mending, Ready
from relay.jobs import Done, Run, TableProgress
from relay.storage import Storage
from upstream.folded import folded
from upstream.schema import Table

log = logging.getLogger("sluice.backfill")

_MOST_BYTES = 24 << 20
"""Of one chunk."""
_TRIES = 30
"""Of one chunk."""
_TELL_AFTER_S = 3.0
_LOOK_S = 0.1


class OrderedError(Signal):
    """An operator wants the job to pause or to end; `order` as `relay.jobs.Run.order`."""

    def __init__(self, order: str) -> None:
        super().__init__(order)
        self.order = order


@dataclass(frozen=True, slots=True)
class Sides:
    """What a backfill works with. `read` is called by a thread of its own."""

    upstream: UpstreamTables
    downstream: DownstreamSide
    appointments: Appointments
    storage: Storage
    read: ReadChunk


@dataclass(slots=True)
class _InHand:
    """A chunk with its appointment; `read` once its rows are ready, `trouble` if nothing came of it."""

    chunk: Chunk
    made: Appointment
    table: Table
    read: ChunkRead | None = None
    trouble: str = ""
    too_large: bool = False


class Backfill:
    """One run of a job. `work` does it; whatever ends it early, nobody waits for what it leaves."""

    def __init__(self, request: BackfillRequest, plan: BackfillPlan, sides: Sides, job: str, run: Run) -> None:
        self._request = request
        self._plan = plan
        self._sides = sides
        self._job = job
        self._run = run
        self._appointments = sides.appointments
        self._appointing = Appointing(self._appointments, job, sides.upstream.now, sides.downstream)
        self._file = FrontierFile(sides.storage, job)
        self._frontier: Frontier = self._file.load(len(plan.tables))
        self._size = ChunkSize()
        self._rate = RowRate(request.rows_per_second)
        self._in_hand: deque[_InHand] = deque()
        self._tries: Counter[int] = Counter()
        self._reading: Future[None] | None = None
        self.warnings: list[str] = []

    # What is told

    @property
    def result(self) -> dict[str, Any]:
        """What was done so far, by table, as JSON values."""
        tables = {
            plan.name: {
                **state.counts, "chunks": state.chunks, "bytes": state.bytes, "examples": list(state.examples),
                "over": state.is_over,
            }
            for plan, state in zip(self._plan.tables, self._frontier.tables, strict=True)
        }  # fmt: skip
        return {"mode": self._request.mode, "tables": tables, "warnings": list(self.warnings)}

    def progress(self) -> dict[str, TableProgress]:
        """What there is to do, and what is done, by table."""
        return {
            plan.name: TableProgress(
                Done(state.counts["rows"], state.bytes, state.chunks), plan.bytes, 0, plan.rows or None
            )
            for plan, state in zip(self._plan.tables, self._frontier.tables, strict=True)
        }

    # Doing it

    def work(self) -> None:
        """Until every chunk is done. Raises OrderedError, BackfillError, and what the upstream's and the downstream's
        clients raise.
        """
        self._run.begin_with(self.progress())
        self._mend_all()
        for made in self._appointing.left_over():
            self._finish_left_over(made)
        with ThreadPoolExecutor(1, thread_name_prefix="backfill read") as pool:
            try:
                self._work(pool)
            except OrderedError:
                self._finish_ready()
                raise
            finally:
                self._let_go()

    def _work(self, pool: ThreadPoolExecutor) -> None:
        ahead: _InHand | None = None
        while True:
            self._heed_orders()
            current, ahead = ahead or self._appoint(), None
            if current is None:
                if self._in_hand:
                    self._finish(self._in_hand[0])
                elif all(state.is_over for state in self._frontier.tables):
                    return
                continue
            reading = self._reading = pool.submit(self._read, current)
            while self._in_hand[0] is not current:
                self._finish(self._in_hand[0])
            ahead = self._appoint()
            reading.result()
            self._look_at(current)

    def _let_go(self) -> None:
        """Of appointments that nothing comes of; what is ready apply will write, or not."""
        given_up = []
        for hand in self._in_hand:
            with contextlib.suppress(SluiceError, OSError):
                if self._appointing.give_up(hand.made, "the job has ended"):
                    given_up.append(hand.made)
        if self._reading is not None:
            wait([self._reading])
        for made in given_up:
            with contextlib.suppress(SluiceError, OSError):
                self._appointing.remove(made)

    def _finish_ready(self) -> None:
        """Unless applying takes its time."""
        with contextlib.suppress(OrderedError):
            for hand in [hand for hand in self._in_hand if hand.read is not None]:
                self._finish(hand)

    def _heed_orders(self) -> None:
        self._run.check()
        if self._run.order is not None:
            raise OrderedError(self._run.order)

    # Cutting, appointing

    def _appoint(self) -> _InHand | None:
        """An appointment for the next chunk; None if there is none at the moment."""
        while (wait_s := self._rate.wait_s()) > 0:
            if self._in_hand:
                return None
            self._heed_orders()
            time.sleep(min(wait_s, _LOOK_S))
        chunk = self._open_again() or self._next()
        if chunk is None:
            return None
        table = self._definition(chunk.table)
        if table is None:
            self._dropped(chunk.table)
            return None
        self._file.keep(self._frontier)
        plan = self._plan.tables[chunk.table]
        key = range_key(table)
        condition = chunk.condition or (in_range(key, chunk.low, chunk.high) if chunk.low or chunk.high else "")
        made = self._appointing.make(
            Appointment(
                0, self._job, chunk.number, table.id, table.schema_name, table.name, self._request.mode,
                condition, tuple(column.name for column in key) if chunk.low or chunk.high else (),
                listed=bool(self._request.where), is_whole=self._is_whole(plan),
            )
        )  # fmt: skip
        hand = _InHand(chunk, made, table)
        self._in_hand.append(hand)
        return hand

    def _open_again(self) -> Chunk | None:
        """A chunk that came to nothing, cut anew if chunks have become smaller."""
        busy = {hand.chunk.number for hand in self._in_hand}
        for number, chunk in self._frontier.open.items():
            if number not in busy:
                table = None if chunk.condition else self._definition(chunk.table)
                if table is not None and (bound := self._bound(table, chunk.low, chunk.high)) is not None:
                    self._frontier.next_chunk(chunk.table, bound, chunk.high)
                    chunk.high = bound
                return chunk
        return None

    def _next(self) -> Chunk | None:
        for place, (plan, state) in enumerate(zip(self._plan.tables, self._frontier.tables, strict=True)):
            if state.is_cut:
                continue
            table = self._definition(place)
            if table is None:
                self._dropped(place)
                continue
            if not state.is_begun:
                self._begin(plan, table)
                state.is_begun = True
                state.low = plan.low
            self._run.doing(plan.name)
            if plan.only:
                return self._frontier.next_of(place, plan.only)
            bound = self._bound(table, state.low, plan.high)
            chunk = self._frontier.next_chunk(place, state.low, bound or plan.high)
            state.low, state.is_cut = bound, bound is None
            return chunk
        return None

    def _bound(self, table: Table, low: list[str] | None, high: list[str] | None) -> list[str] | None:
        key = range_key(table)
        if not key:
            return None
        return self._sides.upstream.key_behind(table, key, (low, high), self._rate.limit(self._size.rows))

    def _mend_all(self) -> None:
        """Say of every table that is not done that rows may be missing, before applying is waited for.

        Applying may have stopped at any of them, and the first appointment waits for applying.
        """
        if self._request.mode == COMPARE:
            return
        for plan, state in zip(self._plan.tables, self._frontier.tables, strict=True):
            if not state.is_over:
                self._appointing.mend(Mending(self._mending(plan), self._job, (plan.table_id,)), self._run)

    def _begin(self, plan: TablePlan, table: Table) -> None:
        if self._request.mode != COMPARE and table.id != plan.table_id:  # truncated since it was planned
            self._appointing.mend(Mending(self._mending(plan, table.id), self._job, (table.id,)), self._run)
        if plan.is_created and folded(plan.target) not in self._sides.downstream.columns():
            self.warnings += self._sides.downstream.create_table(table, self._sides.upstream.definitions)

    def _is_whole(self, plan: TablePlan) -> bool:
        return not (self._request.where or plan.low or plan.high or plan.only)

    def _mending(self, plan: TablePlan, table_id: int = 0) -> str:
        """Return the name of a table's mending; `table_id` if it has another id than when it was planned."""
        return f"{self._job}.{plan.table_id}" + (f".{table_id}" if table_id else "")

    def _definition(self, place: int, at_ts: int | None = None) -> Table | None:
        """A table of the plan as it is now, or was at a timestamp; None if it is gone. Raises BackfillError if it isn't
        what was planned.
        """
        plan = self._plan.tables[place]
        tables = self._sides.upstream.definitions(at_ts or self._sides.upstream.now()).tables
        found = next((t for t in tables if t.full_name == plan.name), None)
        if found is None:
            if any(t.id == plan.table_id for t in tables):
                raise BackfillError(f"{plan.name} has another name now: begin anew with that name")
            return None
        if tuple(column.name for column in range_key(found)) != plan.key:
            raise BackfillError(f"the key of {plan.name} has changed: begin anew, with the chunks of the new key")
        return found

    def _dropped(self, place: int) -> None:
        """Replication drops it downstream, too."""
        state, plan = self._frontier.tables[place], self._plan.tables[place]
        busy = {hand.chunk.number for hand in self._in_hand}
        for number in [n for n, chunk in self._frontier.open.items() if chunk.table == place and n not in busy]:
            del self._frontier.open[number]
        state.is_cut = True
        if not any(chunk.table == place for chunk in self._frontier.open.values()) and not state.is_over:
            self._end(place)
            self.warnings.append(f"{plan.name} was dropped upstream meanwhile")

    # Reading

    def _read(self, hand: _InHand) -> None:
        """Read the chunk, and say that it is ready. In a thread of its own; trouble is noted, and told by
        `_look_at`.
        """
        try:
            self._appointing.wait_for(hand.made.at_ts)
            self._read_at(hand)
        except Exception as error:
            self._appointing.give_up(hand.made, f"it could not be read: {error}")
            told = ours(error)
            if not told.transient:
                raise
            hand.read, hand.trouble = None, str(told)

    def _read_at(self, hand: _InHand) -> None:
        made = hand.made
        table = self._definition(hand.chunk.table, made.at_ts)
        if table is None or table.id != hand.table.id:
            self._appointing.give_up(made, "the table is gone")
            hand.trouble = "the table was dropped or truncated meanwhile"
            return
        path = f"jobs/{self._job}/rows/{made.at_ts}"
        conditions = [made.condition or "TRUE", *([f"({self._request.where})"] if self._request.where else [])]
        most = _MOST_BYTES if range_key(table) and not hand.chunk.condition else 0
        found = self._sides.read(ReadOrder(made.at_ts, table, " AND ".join(conditions), path, most))
        if not found.complete:
            self._appointing.give_up(made, f"it has more than {most} bytes")
            hand.trouble, hand.too_large = f"the chunk has more than {most >> 20} MiB", True
            self._forget_files(found)
            return
        hand.read = found
        outcome = self._appointing.settle(made, Ready(table.to_json(), made.at_ts, found.loads))
        if not isinstance(outcome, Ready):
            hand.read, hand.trouble, hand.too_large = None, f"applying went on without it: {outcome.why}", True
            self._forget_files(found)

    def _look_at(self, hand: _InHand) -> None:
        """After reading: a chunk that came to nothing comes again."""
        if hand.read is not None:
            self._rate.used(max(hand.read.rows, 1))
            return
        self._in_hand.remove(hand)
        self._appointing.remove(hand.made)
        self._once_more(hand.chunk, hand.trouble, too_large=hand.too_large)

    def _once_more(self, chunk: Chunk, why: str, *, too_large: bool) -> None:
        log.info("chunk %d of %s again: %s", chunk.number, self._plan.tables[chunk.table].name, why)
        if too_large:
            self._size.was_too_large()
        self._tries[chunk.number] += 1
        if self._tries[chunk.number] >= _TRIES:
            raise BackfillError(
                f"{self._plan.tables[chunk.table].name}: a chunk came to nothing {_TRIES} times, the last time because:"
                f" {why}",
                way_out="see to that, then `sluice jobs resume` goes on with it",
            )
        time.sleep(min(0.05 * 2 ** self._tries[chunk.number], 2.0))

    # What became of it

    def _finish(self, hand: _InHand) -> None:
        """Wait for what apply makes of a chunk that is ready."""
        assert hand.read is not None
        found = self._appointing.result(hand.made, self._waiting)
        self._in_hand.remove(hand)
        if found is not None and not found.declined:
            self._size.took(hand.read.rows, hand.read.read_ms + found.write_ms)
            self._note(hand.chunk, hand.read, found)
        self._appointing.remove(hand.made)
        self._forget_files(hand.read)
        if found is None:
            self._once_more(hand.chunk, "the checkpoint passed it", too_large=True)
        elif found.declined:
            if not found.is_passing:
                raise BackfillError(found.declined, way_out="see to that, then `sluice jobs resume` goes on")
            self._once_more(hand.chunk, found.declined, too_large=False)

    def _note(self, chunk: Chunk, read: ChunkRead, found: Any) -> None:
        plan, state = self._plan.tables[chunk.table], self._frontier.tables[chunk.table]
        self._frontier.open.pop(chunk.number, None)
        state.add(found, read.bytes)
        self._tries.pop(chunk.number, None)
        if state.is_cut and not any(other.table == chunk.table for other in self._frontier.open.values()):
            self._end(chunk.table)
        self._file.keep(self._frontier)
        self._run.did(plan.name, Done(found.rows, read.bytes, 1))

    def _end(self, place: int) -> None:
        self._frontier.tables[place].is_over = True
        name = self._mending(self._plan.tables[place])
        for mending in self._appointments.mendings():
            if mending.name == name or mending.name.startswith(f"{name}."):
                self._appointments.mended(mending.name)

    def _waiting(self, seconds: float) -> None:
        self._run.check()
        if seconds > _TELL_AFTER_S:
            self._run.doing("waiting for applying to come to the chunk: does the pipeline run? `sluice status` tells")
            if self._run.order is not None:
                raise OrderedError(self._run.order)

    def _finish_left_over(self, made: Appointment) -> None:
        """Of a process before: its rows were ready, apply has written them or will."""
        found = self._appointing.result(made, self._waiting)
        chunk = self._frontier.open.get(made.number)
        if chunk is not None and found is not None and not found.declined:
            self._note(chunk, ChunkRead((), complete=True, read_ms=0), found)
        self._appointing.remove(made)

    def _forget_files(self, read: ChunkRead) -> None:
        for load in read.loads:
            self._sides.storage.remove(load.path)


def stop_mending(appointments: Appointments, job: str) -> Iterator[str]:
    """A job that is given up: changes to its tables are checked again. The names of its mendings."""
    for mending in appointments.mendings():
        if mending.job == job:
            appointments.mended(mending.name)
            yield mending.name

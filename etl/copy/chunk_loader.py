"""Write chunks downstream in several sessions, each chunk in one transaction, exactly once.

While one session writes what it has got, others wait for theirs to be read, so reading and writing
overlap without more than a chunk a session in memory.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from sluice.errors import ours
from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.steps import HoldAsBytes, Step
from sluice.etl.copy.chunk_ledger import ChunkLedger
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.plan import CopyPlan, PlannedTable
from sluice.etl.copy.source import SourceChunk
from sluice.etl.copy.spark_loads import MakeLoads
from sluice.etl.downstream import DownstreamError, LoadOutcome, MySQLSession
from sluice.etl.downstream.ddl import hold_as_bytes
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings import Downstream
from sluice.tidb.folded import folded

log = logging.getLogger("sluice.copy")

_MAX_ATTEMPTS = 20
_CLOSE_TIMEOUT_S = 3.0
"""Time for sessions to end by themselves when the copy is broken off."""


@dataclass(frozen=True, slots=True)
class CopiedChunk:
    """A chunk that is downstream.

    `table`: its name upstream. `bytes`: of the rows as text; `planned_bytes`: as the plan expected.
    `waited_s`, `written_s`: how long its session waited for its rows, and wrote them.
    `was_present`: it was downstream already: another process has copied it, or this one, before it
    lost its connection.
    """

    number: int
    table: str
    rows: int
    bytes: int
    planned_bytes: int
    waited_s: float = 0.0
    written_s: float = 0.0
    was_present: bool = False
    warnings: tuple[str, ...] = ()
    """Changes made downstream so that the chunk's values fit."""


class ChunkLoader:
    """Copy the chunks of a plan."""

    def __init__(
        self,
        downstream: Downstream,
        plan: CopyPlan,
        copied: ChunkLedger,
        make: MakeLoads,
        sessions: int,
    ) -> None:
        """Prepare a loader; `make` is called by `sessions` threads."""
        self._downstream = downstream
        self._plan = plan
        self._copied = copied
        self._make = make
        self._sessions = sessions
        self._stop = threading.Event()
        self._open: set[MySQLSession] = set()
        self._changing = threading.Lock()
        self._held: dict[str, set[str]] = {}  # columns of text that hold bytes, by table
        self._computed: dict[str, frozenset[str]] = {}
        self._should_continue: Callable[[], bool] = lambda: True

    def run(
        self,
        numbers: list[int],
        hold: Callable[[MySQLSession, int], None],
        go_on: Callable[[], bool] = lambda: True,
    ) -> Iterator[CopiedChunk]:
        """Copy these chunks; they come as they are committed.

        `hold(session, n)` marks the n-th session as one of this process; no chunk is begun once
        `go_on()` is false. Raises CopyError, DownstreamError, what `make` and `go_on` raise;
        nothing of the chunk that failed stays.
        """
        self._should_continue = go_on
        waiting: SimpleQueue[int] = SimpleQueue()
        for number in numbers:
            waiting.put(number)
        found: SimpleQueue[CopiedChunk | BaseException | None] = SimpleQueue()
        threads = [
            threading.Thread(
                target=self._work,
                args=(n + 1, waiting, found, hold),
                name=f"copy-{n + 1}",
                daemon=True,
            )
            for n in range(min(self._sessions, max(len(numbers), 1)))
        ]
        for thread in threads:
            thread.start()
        try:
            left = len(threads)
            while left:
                each = found.get()
                if isinstance(each, BaseException):
                    raise each
                if each is None:
                    left -= 1
                else:
                    yield each
        finally:
            self._stop.set()
            self._end(threads)

    def _end(self, threads: list[threading.Thread]) -> None:
        """Return when no thread writes any more.

        One that waits for Spark, or for the server, may do so for long: it loses its session, and
        what it wrote in it.
        """
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for session in list(self._open):
            session.close()

    def _work(
        self,
        number: int,
        waiting: SimpleQueue[int],
        found: SimpleQueue[CopiedChunk | BaseException | None],
        hold: Callable[[MySQLSession, int], None],
    ) -> None:
        session = MySQLSession(self._downstream)
        self._open.add(session)
        try:
            while not self._stop.is_set() and self._should_continue():
                try:
                    chunk = waiting.get_nowait()
                except Empty:
                    break
                found.put(self._with_retries(session, chunk, lambda: hold(session, number)))
            found.put(None)
        except BaseException as error:
            found.put(error)
        finally:
            session.close()
            self._open.discard(session)

    def _with_retries(
        self, session: MySQLSession, number: int, hold: Callable[[], None]
    ) -> CopiedChunk:
        """Copy a chunk, and again after transient errors.

        The chunk's row shows whether a commit went through.
        """
        waiting = RetryBackoff(log, f"copying chunk {number}")
        for attempt in range(_MAX_ATTEMPTS):
            try:
                if not session.is_connected:
                    session.connect()
                    hold()
                return self._copy(session, number)
            except Exception as error:
                session.close()
                failure = ours(error)
                if not failure.transient or attempt == _MAX_ATTEMPTS - 1 or self._stop.is_set():
                    raise
                self._stop.wait(waiting.after(failure))
        raise AssertionError("unreachable")

    def _copy(self, session: MySQLSession, number: int) -> CopiedChunk:
        chunk = self._plan.chunks[number]
        planned = self._plan.tables[self._plan.of_table[number]]
        changed: list[str] = []
        while True:
            done = self._copy_once(session, number, chunk, planned)
            if isinstance(done, CopiedChunk):
                return replace(done, warnings=tuple(changed))
            session.rollback()  # an ALTER TABLE would commit what is there of the chunk
            changed += self._hold_bytes(session, planned, done)

    def _hold_bytes(
        self, session: MySQLSession, planned: PlannedTable, columns: set[str]
    ) -> list[str]:
        with self._changing:
            held = self._held.setdefault(planned.target, set())
            if columns <= held:
                return []
            detail = HoldAsBytes(tuple(sorted(columns)), self._plan.ts)
            warnings = hold_as_bytes(
                session, Step(detail, self._plan.ts, planned.schema, planned.name)
            )
            held |= columns
            return warnings

    def _copy_once(
        self, session: MySQLSession, number: int, chunk: SourceChunk, planned: PlannedTable
    ) -> CopiedChunk | set[str]:
        """Write a chunk and commit.

        Or return the columns of text that have to hold bytes before that.
        """
        text = {column.name for column in planned.table.columns if column.kind == "text"}
        session.begin()
        if not self._copied.claim(session, number):
            session.rollback()
            return CopiedChunk(number, chunk.full_name, 0, 0, chunk.bytes, was_present=True)
        rows, size, written_s, began = 0, 0, 0.0, time.perf_counter()
        target = f"{quote_name(planned.schema)}.{quote_name(planned.name)}"
        for batch in self._make(chunk, planned.table):
            for layout, count, warnings, payload in zip(
                *(column for column in batch.columns), strict=True
            ):
                sent = time.perf_counter()
                form = LoadLayout.from_json(json.loads(layout.as_py()))
                if form.generated:
                    there = self._generated_downstream(session, planned)
                    form = replace(
                        form, left_out=tuple(n for n in form.generated if folded(n) in there)
                    )
                bytes_in = text & set(form.hex) - set(form.left_out)
                if columns := bytes_in - self._held.get(planned.target, set()):
                    return columns
                try:
                    outcome = session.load(
                        target, form, payload.as_buffer(), strict=not warnings.as_py()
                    )
                except DownstreamError as error:
                    raise DownstreamError(
                        error.code, f"copying {chunk.full_name}: {error.message}"
                    ) from error
                self._check(session, planned, outcome, (count.as_py(), warnings.as_py()))
                rows += count.as_py()
                size += payload.as_buffer().size
                written_s += time.perf_counter() - sent
        sent = time.perf_counter()
        self._copied.note(session, number, rows)
        if self._stop.is_set():
            raise CopyError(f"chunk {number} isn't written, as the copy was broken off")
        session.commit()
        ended = time.perf_counter()
        written_s += ended - sent
        waited_s = ended - began - written_s
        return CopiedChunk(number, chunk.full_name, rows, size, chunk.bytes, waited_s, written_s)

    def _generated_downstream(self, session: MySQLSession, planned: PlannedTable) -> frozenset[str]:
        if planned.target not in self._computed:
            self._computed[planned.target] = generated_downstream(session, planned)
        return self._computed[planned.target]

    def _check(
        self,
        session: MySQLSession,
        planned: PlannedTable,
        outcome: LoadOutcome,
        expected: tuple[int, int],
    ) -> None:
        rows, warnings = expected
        wanted = (
            LoadOutcome(-1, rows, 0, warnings)
            if outcome.records < 0
            else LoadOutcome(rows, 0, 0, warnings)
        )
        if outcome == wanted:
            return
        messages = (
            "; ".join(message for _, _, message in session.warnings()[:5])
            if outcome.warnings
            else ""
        )
        what = f"{outcome}, {wanted} expected"
        if outcome.deleted and outcome.records >= 0:
            what = (
                f"{outcome.deleted} of {rows} rows have a key that another row has there: text that"
                " differs upstream may be the same under the downstream's collation, or tables"
                " that are merged have the same keys"
            )
        raise CopyError(
            f"{planned.table.full_name} to {planned.target} on {session.address}: {what}"
            f"{f' ({messages})' if messages else ''}. Nothing of this chunk stays"
        )


def generated_downstream(session: MySQLSession, planned: PlannedTable) -> frozenset[str]:
    """Return the columns that the downstream's table computes by itself, in lower case.

    Raises DownstreamError.
    """
    rows = session.query(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME"
        " = %s AND COALESCE(GENERATION_EXPRESSION, '') <> ''",
        (planned.schema, planned.name),
    )
    return frozenset(folded(str(name)) for (name,) in rows)


def count_rows(session: MySQLSession, schema: str, name: str) -> int:
    """Return how many rows a downstream table has. Raises DownstreamError."""
    return int(session.query(f"SELECT COUNT(*) FROM {quote_name(schema)}.{quote_name(name)}")[0][0])

"""An empty database becomes a replica: databases and tables, rows, indexes, foreign keys, views, last the checkpoint.

The order makes every moment safe to be killed in. The plan is kept before anything is written downstream; a table that
is there already is taken as made; a chunk is there with its row or not at all; what indexes are missing is seen. The
checkpoint comes last, in the transaction that finds every chunk there: until then nothing replicates, from then on
landing and applying begin at the source's position.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from etl.copy._statements import add_rest, create, create_schema, scoped, without_rest
from etl.copy.copied_table import CopiedTable
from etl.copy.definitions import Definitions
from etl.copy.errors import CopyError
from etl.copy.ledger import Ledger
from etl.copy.loader import ChunkDone, Loader, count_rows
from etl.copy.loads import MakeLoads
from etl.copy.plan import CopyPlan, PlannedTable, make_plan, without_values
from etl.copy.source import Source
from etl.copy.watch import Watch
from etl.ddl import DdlExecutor
from etl.downstream import Checkpoint, CheckpointTable, MySQLSession
from etl.settings import Settings
from relay import RelayLog
from upstream import tso
from upstream.ddl_job import DdlJob
from upstream.schema import Table

__all__ = ["Bootstrap", "BootstrapSummary", "Progress"]

log = logging.getLogger("sluice.copy")

JOB = "bootstrap"
_LOCK_WAIT_S = 5.0


@dataclass(slots=True)
class Progress:
    """How far a copy is. `bytes` are those read from the source; `began_s`: a `time.monotonic()`."""

    bytes_in_all: int = 0
    chunks_in_all: int = 0
    bytes: int = 0
    chunks: int = 0
    rows: int = 0
    waited_s: float = 0.0
    """How long sessions, summed, waited for rows; `written_s`: and wrote them."""
    written_s: float = 0.0
    doing: str = ""
    began_s: float = field(default_factory=time.monotonic)

    def add(self, done: ChunkDone) -> None:
        """A chunk more is downstream."""
        self.bytes += done.bytes
        self.chunks += 1
        self.rows += done.rows
        self.waited_s += done.waited_s
        self.written_s += done.written_s
        self.doing = done.table


@dataclass(frozen=True, slots=True)
class BootstrapSummary:
    """What was done. `ts`: the checkpoint. `rows` and `bytes` count what this process copied, `rows_there` all."""

    ts: int
    tables: int
    rows: int
    rows_there: int
    bytes: int
    seconds: float
    warnings: tuple[str, ...] = ()


class Bootstrap:
    """One bootstrap of the settings' downstream, which is a database, from a source."""

    indexes_after_bytes = 32 << 20
    """Of a table from this size on secondary indexes are made after its rows; see docs/decisions.md."""

    def __init__(
        self, settings: Settings, source: Source, definitions: Definitions, cluster_id: int, globs: Sequence[str] = ()
    ) -> None:
        """`definitions`: the upstream's schema at the source's position. `globs`: see `etl.copy.plan.make_plan`."""
        self._settings = settings
        self._source = source
        self._definitions = definitions
        self._globs = tuple(globs)
        self._relay = RelayLog.open(settings.relay.url)
        self._ledger = Ledger(self._relay.storage, JOB)
        self._session = MySQLSession(settings.downstream)
        place = settings.downstream.checkpoint_schema, settings.downstream.checkpoint_table
        self._checkpoint = CheckpointTable(self._session, cluster_id, *place)
        self._lock = self._checkpoint.writer_lock()
        self._warnings: list[str] = []
        self.watch = Watch()
        """Looked at while rows are copied, and before the checkpoint is written."""

    def plan(self, into: Sequence[str] = ()) -> CopyPlan:
        """What `run` would do, and in `problems` what hinders it. Nothing is written. `into`: databases downstream that
        may hold other tables. Raises CopyError, DownstreamError.
        """
        kept = self._ledger.plan()
        if kept is not None:
            plan = CopyPlan.from_json(kept)
            return plan if self._ledger.result() is None else replace(plan, problems=(self._done(),))
        made = make_plan(
            self._source, self._definitions, self._settings.filters, self._settings.routes, self._globs
        )  # fmt: skip
        self._session.connect()
        try:
            problems = [*made.problems, *self._downstream_problems(made, into), *self._relay_problems(made.ts)]
        finally:
            self._session.close()
        return replace(made, problems=tuple(problems))

    def _done(self) -> str:
        return (
            f"the bootstrap of {self._relay.url} is done: its result lies in jobs/{JOB}/result.json. To begin anew,"
            " empty the downstream, checkpoint and all, and begin with an empty relay log"
        )

    def run(
        self,
        make: MakeLoads,
        into: Sequence[str] = (),
        on_progress: Callable[[Progress], None] | None = None,
    ) -> BootstrapSummary:
        """Do it, or go on with it where a process before this one ended. Raises CopyError for what hinders it,
        DdlError, DownstreamError, and what `make` raises.
        """
        began = time.monotonic()
        asked = {"source": self._source.spec(), "tables": list(self._globs), "into": list(into)}
        plan, job = self._kept_plan(asked, into)
        copied = CopiedTable(self._settings.downstream.checkpoint_schema, f"{JOB}-{job}")
        progress = Progress(plan.bytes, len(plan.chunks), began_s=began)
        try:
            self._seize()
            copied.create(self._session)
            ended = copied.has_ended(self._session)
            self._session.commit()
            if not ended:
                self._copy(plan, copied, make, (progress, on_progress or (lambda _: None)))
            rows_there = sum(copied.rows(self._session).values())
            self._session.commit()
            summary = BootstrapSummary(
                plan.ts, len(plan.tables), progress.rows, rows_there, progress.bytes,
                round(time.monotonic() - began, 3),
                tuple(self._warnings),
            )  # fmt: skip
            self._ledger.finish(asdict(summary))
            copied.forget(self._session)
            self._session.commit()
        finally:
            self._session.close()
        return summary

    def _kept_plan(self, asked: dict[str, Any], into: Sequence[str]) -> tuple[CopyPlan, str]:
        """The plan of the job and its token; both are kept before anything is written downstream."""
        if self._ledger.spec() is not None:
            self._ledger.begin(asked, "")  # raises if it is another's
        plan = self.plan(into)
        if plan.problems:
            raise CopyError("\n".join(plan.problems))
        token = self._ledger.begin(asked, secrets.token_hex(8))["token"]
        return CopyPlan.from_json(self._ledger.keep_plan(plan.to_json())), token

    # What hinders it

    def _relay_problems(self, ts: int) -> list[str]:
        first, last = self._relay.first(), self._relay.last()
        if first is None or last is None or first.lo <= ts <= last.hi:
            return []
        return [
            f"the relay log {self._relay.url} holds the windows from {first.lo} to {last.hi}, and the source is of"
            f" {ts}: what was committed between is not in it. Begin with an empty relay log ([relay] url), and land"
            " nothing before the copy is done"
        ]

    def _downstream_problems(self, plan: CopyPlan, into: Sequence[str]) -> list[str]:
        problems = []
        found = self._checkpoint.load() if self._checkpoint.is_there() else None
        if found is not None:
            problems.append(
                f"{self._session.address} has a checkpoint of this cluster already, at {found.commit_ts}: it is a"
                " replica. To begin anew, empty it, checkpoint and all"
            )
        targets = {planned.schema.lower() for planned in plan.tables} - {name.lower() for name in into}
        tables = self._session.query("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES")
        planned = {(p.schema.lower(), p.name.lower()) for p in plan.tables}
        held = sorted(
            f"{schema}.{name}"
            for schema, name in tables
            if str(schema).lower() in targets or (str(schema).lower(), str(name).lower()) in planned
        )
        if held:
            shown = ", ".join(held[:10]) + (f" and {len(held) - 10} more" if len(held) > 10 else "")
            problems.append(
                f"{self._session.address} isn't empty: {shown}. Remove these tables; databases that may hold others are"
                " named with --into"
            )
        self._session.commit()
        return problems

    def _seize(self) -> None:
        """Be the only process that writes there."""
        self._session.connect()
        self._checkpoint.create()
        deadline = time.monotonic() + _LOCK_WAIT_S
        while not self._lock.try_seize(self._session):
            if time.monotonic() > deadline:
                holder = self._lock.holder(self._session)
                raise CopyError(
                    f"another process writes to {self._session.address} as this pipeline"
                    f"{f', in connection {holder[0]}' if holder else ''}: a bootstrap that runs, or applying. If it is"
                    f" none of yours any more: KILL {holder[0] if holder else 'that connection'} there"
                )
            time.sleep(0.1)
        self._lock.seize(self._session, _LOCK_WAIT_S)  # and nobody beside

    # Doing it

    def _copy(
        self,
        plan: CopyPlan,
        copied: CopiedTable,
        make: MakeLoads,
        shown: tuple[Progress, Callable[[Progress], None]],
    ) -> None:
        progress, show = shown
        progress.doing = "creating tables"
        show(progress)
        executor = DdlExecutor(self._session)
        self._create_tables(executor, plan)
        self._list(plan, copied)
        there = copied.rows(self._session)
        self._session.commit()
        for number in there:
            progress.bytes += plan.chunks[number].bytes
            progress.chunks += 1
        loader = Loader(self._settings.downstream, plan, copied, make, self._settings.apply.worker_count)
        left = [number for number in range(len(plan.chunks)) if number not in there]
        for done in loader.run(left, self._lock.hold):
            self._ledger.note_done(done.number, done.rows, done.bytes)
            progress.add(done)
            show(progress)
            self.watch.now_and_then()
        self._add_rest(executor, plan, progress, show)
        progress.doing = "counting rows"
        show(progress)
        self.watch.now()
        self._finish(plan, copied)

    def _create_tables(self, executor: DdlExecutor, plan: CopyPlan) -> None:
        names = {planned.table.schema_name for planned in plan.tables}
        for schema in self._definitions.schemas:
            if self._settings.filters.wants_schema(schema.name) and (schema.name in names or not self._globs):
                self._execute(executor, create_schema(schema, plan.ts))
        for planned in plan.tables:
            bare = (
                planned.table if planned.merged else without_rest(planned.table, indexes=self._indexes_after(planned))
            )
            self._execute(executor, create(bare, plan.ts))
            self._check_computed(planned)

    def _check_computed(self, planned: PlannedTable) -> None:
        """Generated columns that rows bring in replication, and that no source has, must be computed here."""
        wanted = [column.name for column in planned.table.stored_columns if column.generated]
        if not wanted:
            return
        rows = self._session.query(
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND"
            " COALESCE(GENERATION_EXPRESSION, '') <> ''",
            (planned.schema, planned.name),
        )
        computed = {str(name).lower() for (name,) in rows}
        if plain := [name for name in wanted if name.lower() not in computed]:
            raise CopyError(without_values(planned.table, plain))

    def _list(self, plan: CopyPlan, copied: CopiedTable) -> None:
        """From here on sessions may copy, until the checkpoint is there."""
        self._session.begin()
        if self._checkpoint.load(wait=True) is not None:
            raise CopyError(f"{self._session.address} has a checkpoint by now: another process has ended this copy")
        copied.list(self._session, dict(enumerate(map(str, plan.chunks))))
        self._session.commit()

    def _add_rest(
        self, executor: DdlExecutor, plan: CopyPlan, progress: Progress, show: Callable[[Progress], None]
    ) -> None:
        for what in (0, 1):  # every index before the first foreign key
            for planned in plan.tables:
                bare = without_rest(planned.table, indexes=self._indexes_after(planned))
                steps = [] if planned.merged else add_rest(bare, planned.table, plan.ts)
                for step in steps:
                    if (step.type == steps[0].type and bare.indexes != planned.table.indexes) == (what == 0):
                        progress.doing = f"indexes of {planned.target}"
                        show(progress)
                        self._execute(executor, step)
        others = [t for t in self._definitions.tables if self._is_other(t)]
        for table in sorted(others, key=lambda t: (t.is_view, t.id)):
            self._execute(executor, create(table, plan.ts))

    def _is_other(self, table: Table) -> bool:
        """A view or a sequence that the rules want."""
        wanted = self._settings.filters.wants_table(table.schema_name, table.name)
        return wanted and (table.is_view or table.is_sequence) and not self._globs

    def _execute(self, executor: DdlExecutor, ddl: DdlJob) -> None:
        wanted = scoped(ddl, self._settings.filters, self._settings.routes)
        if wanted is None:
            return
        executor.fingerprint(wanted)  # makes the databases that routes need
        for warning in executor.execute(wanted):
            log.warning("%s: %s", ddl.query, warning)
            self._warnings.append(warning)
        self._session.commit()

    def _finish(self, plan: CopyPlan, copied: CopiedTable) -> None:
        """Find every chunk there, and the tables with as many rows; write the checkpoint with it."""
        self._session.begin()
        there = copied.rows(self._session)
        missing = set(range(len(plan.chunks))) - there.keys()
        if missing:
            raise CopyError(f"{len(missing)} chunks are not downstream, the first is {min(missing)}: begin again")
        expected: Counter[tuple[str, str]] = Counter()
        for number, rows in there.items():
            planned = plan.tables[plan.of_table[number]]
            expected[planned.schema, planned.name] += rows
        for schema, name in sorted({(planned.schema, planned.name) for planned in plan.tables}):
            found = count_rows(self._session, schema, name)
            if found != expected[schema, name]:
                raise CopyError(
                    f"{schema}.{name} on {self._session.address} has {found} rows, {expected[schema, name]} were"
                    " copied: somebody else wrote there. Empty the downstream and begin anew"
                )
        if problems := self._relay_problems(plan.ts):
            raise CopyError(problems[0])
        copied.end(self._session)
        self._checkpoint.save(Checkpoint(plan.ts, plan.schema_version), first=True)
        self._session.commit()
        log.info("the downstream is complete through %d (%s)", plan.ts, tso.to_datetime(plan.ts))

    def _indexes_after(self, planned: PlannedTable) -> bool:
        return planned.bytes >= self.indexes_after_bytes

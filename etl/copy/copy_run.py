"""Bring rows downstream by a job, as of its source's moment: the common part of all copies.

The order makes every moment safe to be killed in. The plan is kept before anything is written
downstream; a table that is there already is taken as made; a chunk is there with its row or not at
all; what indexes are missing is seen. The checkpoint comes last, in the transaction that finds
every chunk there: until then nothing replicates, from then on applying begins at the source's
position.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sluice.etl.copy.chunk_ledger import ChunkLedger
from sluice.etl.copy.chunk_loader import ChunkLoader, CopiedChunk, count_rows
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.plan import CopyPlan, PlannedTable
from sluice.etl.copy.preconditions import PreconditionMonitor
from sluice.etl.copy.preflight import relay_problems
from sluice.etl.copy.sources import BootstrapSpec
from sluice.etl.copy.spark_loads import MakeLoads
from sluice.etl.copy.staged_loads import remove_files
from sluice.etl.copy.table_creator import TableCreator
from sluice.etl.downstream import Checkpoint, CheckpointTable, MySQLSession
from sluice.etl.settings import Settings
from sluice.relay.jobs import Job, JobCounts, JobRun, TableProgress
from sluice.tidb import tso
from sluice.tidb.table_name import full_name

__all__ = ["CopyJob", "CopyProgressCounts", "CopyTarget"]

log = logging.getLogger("sluice.copy")

LOCK_TIMEOUT_S = 5.0

CopyTarget = tuple[Settings, SourceSchema, CheckpointTable, MySQLSession]
"""The destination of a copy, and the upstream's schema as of its source."""


@dataclass(slots=True)
class CopyProgressCounts:
    """Counts of a copy's progress.

    `bytes` are those of the rows that this process copied; `planned_bytes`: of `bytes_in_all`,
    which the plan estimates, what is done; `began_s`: a `time.monotonic()`.
    """

    bytes_in_all: int = 0
    chunks_in_all: int = 0
    bytes: int = 0
    planned_bytes: int = 0
    chunks: int = 0
    rows: int = 0
    waited_s: float = 0.0
    """Time that sessions, summed, waited for rows; `written_s`: and wrote them."""
    written_s: float = 0.0
    doing: str = ""
    began_s: float = field(default_factory=time.monotonic)

    def add(self, done: CopiedChunk) -> None:
        """Count one more chunk that is downstream."""
        self.bytes += done.bytes
        self.planned_bytes += done.planned_bytes
        self.chunks += 1
        self.rows += done.rows
        self.waited_s += done.waited_s
        self.written_s += done.written_s
        self.doing = done.table


class CopyJob:
    """The steps of a copy job's run.

    Each raises StopRequested where the run is to end, LeaseLostError, CopyError for what hinders
    it, DdlError, DownstreamError, and what `make` raises.
    """

    def __init__(
        self,
        place: CopyTarget,
        what: tuple[CopyPlan, BootstrapSpec],
        job: Job,
        run: JobRun,
        on_progress: Callable[[CopyProgressCounts], None],
    ) -> None:
        self._settings, self._definitions, self._checkpoint, self._session = place
        self.plan, self._asked = what
        self._job = job
        self._run = run
        self._on_progress = on_progress
        rules = self._settings.filters, self._settings.routes
        self.tables = TableCreator(self._session, rules, self.plan, self._asked)
        self._copied = ChunkLedger(
            self._settings.downstream.checkpoint_schema, f"{job.spec.kind}-{job.spec.token}"
        )
        self._lock = self._checkpoint.writer_lock()
        self.watch = PreconditionMonitor()
        self.progress = CopyProgressCounts(self.plan.bytes, len(self.plan.chunks))

    def _set_activity(self, what: str) -> None:
        """Set what comes next. Raises StopRequested if the run is to end here, LeaseLostError."""
        self._run.check_order()
        self._run.doing(what)
        self.progress.doing = what
        self._on_progress(self.progress)

    # Preparing

    def _prepare(self) -> None:
        self._acquire_lock()
        self._copied.create(self._session)
        ended = self._copied.has_ended(self._session)
        self._session.commit()
        if not ended:
            self._set_activity("creating tables")
            self.tables.create(self._definitions, self._set_activity)
            self._register_chunks()
        self._run.set_totals(self._open_snapshot())

    def _acquire_lock(self) -> None:
        """Take the writer lock, by which this process alone writes to the downstream."""
        self._session.connect()
        self._checkpoint.create()
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while not self._lock.try_acquire(self._session):
            if time.monotonic() > deadline:
                holder = self._lock.holder(self._session)
                raise CopyError(
                    f"another process writes to {self._session.address} as this"
                    f" pipeline{f', in connection {holder[0]}' if holder else ''}: a bootstrap that"
                    " runs, or applying. If it is none of yours any more: KILL"
                    f" {holder[0] if holder else 'that connection'} there"
                )
            time.sleep(0.1)
        self._lock.acquire(self._session, LOCK_TIMEOUT_S)  # and no process beside
        remove_files(self._settings.open_relay().storage)  # of processes that were killed

    def _register_chunks(self) -> None:
        """List the chunks: from here on sessions may copy, until the checkpoint exists."""
        self._session.begin()
        if self._checkpoint.load(wait=True) is not None:
            raise CopyError(
                f"{self._session.address} has a checkpoint by now: another process has ended this"
                " copy"
            )
        self._copied.list(self._session, dict(enumerate(map(str, self.plan.chunks))))
        self._session.commit()

    def _open_snapshot(self) -> dict[str, TableProgress]:
        """Return the progress by table: what is to be copied, and what is downstream already."""
        there = self._copied.rows(self._session)
        self._session.commit()
        found = {
            planned.table.full_name: TableProgress(extra_in_all=self.tables.index_work(planned))
            for planned in self.plan.tables
        }
        for number, chunk in enumerate(self.plan.chunks):
            before = found[chunk.full_name]
            done = (
                before.done + JobCounts(there[number], 0, 1, chunk.bytes)
                if number in there
                else before.done
            )
            found[chunk.full_name] = replace(
                before,
                done=done,
                bytes_in_all=before.bytes_in_all + chunk.bytes,
                chunks_in_all=before.chunks_in_all + 1,
            )
        return found

    # Copying

    def _copy(self, make: MakeLoads, share: int, shares: int) -> None:
        there = self._copied.rows(self._session)
        ended = self._copied.has_ended(self._session)
        self._session.commit()
        if ended:
            return
        for number in there:
            self.progress.planned_bytes += self.plan.chunks[number].bytes
            self.progress.chunks += 1
        left = [number for number in range(len(self.plan.chunks)) if number not in there]
        mine = sorted(left, key=lambda number: number % shares != share)
        sessions = -(-self._settings.apply.worker_count // shares)
        loader = ChunkLoader(self._settings.downstream, self.plan, self._copied, make, sessions)
        for done in loader.run(
            mine,
            lambda session, n: self._lock.hold(session, share * sessions + n),
            self._run.should_continue,
        ):
            if not done.was_present or shares == 1:
                self._run.did(done.table, JobCounts(done.rows, done.bytes, 1, done.planned_bytes))
            self._run.doing(done.table)
            self.tables.warnings += done.warnings
            self.progress.add(done)
            self._on_progress(self.progress)
            self.watch.now_and_then()
        self._set_activity("looking at what is left")

    # Ending

    def _complete(self) -> None:
        """Create indexes and what else comes after rows.

        Find every chunk there, and the tables with as many rows; write the checkpoint with it.
        """
        if not self._copied.has_ended(self._session):
            self.tables.add_indexes(self._definitions, self._add_indexes)
            self._set_activity("counting rows")
            self.watch.now()
            self._confirm()

    def _add_indexes(self, planned: PlannedTable, work: int, execute: Callable[[], None]) -> None:
        self._set_activity(f"indexes of {planned.target}")
        self._run.expect(work)
        execute()
        self._run.did(planned.table.full_name, JobCounts(extra=work))

    def _confirm(self) -> None:
        self._session.begin()
        there = self._copied.rows(self._session)
        missing = set(range(len(self.plan.chunks))) - there.keys()
        if missing:
            raise CopyError(
                f"{len(missing)} chunks are not downstream, the first is {min(missing)}: begin"
                " again"
            )
        expected = self.tables.expected(there)
        for schema, name in sorted(
            {(planned.schema, planned.name) for planned in self.plan.tables}
        ):
            found = count_rows(self._session, schema, name)
            if found != expected.get((schema, name), 0):
                raise CopyError(
                    f"{full_name(schema, name)} on {self._session.address} has {found} rows,"
                    f" {expected.get((schema, name), 0)} were copied: another program wrote there."
                    " `sluice jobs cancel` gives this copy up; empty the downstream then, and"
                    " start over"
                )
        if problems := relay_problems(self._settings.open_relay(), self.plan.ts):
            raise CopyError(problems[0])
        self._run.look()
        self._set_activity("writing the checkpoint")
        self._copied.end(self._session)
        self._checkpoint.save(self._first_checkpoint(), first=True)
        self._session.commit()
        log.info(
            "the downstream is complete through %d (%s)",
            self.plan.ts,
            tso.to_datetime(self.plan.ts),
        )

    def _first_checkpoint(self) -> Checkpoint:
        """Return the row that marks from where on this is a replica."""
        return Checkpoint(self.plan.ts, self.plan.schema_version)

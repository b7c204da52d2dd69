"""The next DDL job that changes a table, from TiDB's history, also before its DDL binlog comes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sluice.errors import Signal
from sluice.etl.landing.extract import DdlRecord
from sluice.tidb import read_ddl_job
from sluice.tidb.ddl_actions import Action
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import Table, parse_object
from sluice.tidb.tikv.meta import read_raw_ddl_jobs

if TYPE_CHECKING:
    from sluice.tidb import PDClient, TiKVClient

log = logging.getLogger("sluice.land")

_WARN_INTERVAL_S = 5.0


class LandingStopped(Signal):
    """The run was stopped while it waited; nothing of the window has been committed."""


class FinishedTableChange(NamedTuple):
    """A finished DDL job, and a table as it leaves it: None if the table is gone, or goes on under another id."""

    job: DdlHistoryJob
    left: Table | None


class _JobTables(NamedTuple):
    """Which tables a finished job changes."""

    schema_version: int
    tables: frozenset[int]
    dropped_schema: int | None

    def changes(self, table: Table) -> bool:
        """Return whether the job changes a table, or ends it."""
        return table.id in self.tables or self.dropped_schema == table.schema_id


class UnlandedJobs:
    """The finished jobs that aren't landed. Each is parsed once: a history may hold tens of thousands."""

    def __init__(self, pd: PDClient, tikv: TiKVClient, landed: Collection[int]) -> None:
        """`landed`: ids of jobs that were landed before."""
        self._pd = pd
        self._tikv = tikv
        self._landed = landed
        self._jobs: dict[int, _JobTables | None] = {}
        """By id; None: it changed nothing."""
        self._is_fresh = False

    def begin(self) -> None:
        """Begin a window: the next question reads the DDL history anew."""
        self._is_fresh = False

    def first(self, table: Table, after_version: int, ddls: Sequence[DdlRecord]) -> FinishedTableChange | None:
        """Return the first job behind a schema version that changes a table; None without one.

        `ddls`: the window's DDL binlogs, whose jobs may be among the landed ones. Raises TiKVError, PDError,
        HistoryError, SchemaError.
        """
        job = next(self.all(table, after_version, ddls), None)
        if job is None:
            return None
        info = next((info for info in (job.table_info, *job.table_infos) if info and int(info["id"]) == table.id), None)
        return FinishedTableChange(
            job, Table.from_tidb(info, table.schema_id, table.schema_name) if info is not None else None
        )

    def all(self, table: Table, after_version: int, ddls: Sequence[DdlRecord] = ()) -> Iterator[DdlHistoryJob]:
        """Yield all such jobs, by ascending schema version. Raises as `first`."""
        if not self._is_fresh:
            self._look(ddls)
        found = sorted(
            (known.schema_version, job_id)
            for job_id, known in self._jobs.items()
            if known is not None and known.schema_version > after_version and known.changes(table)
        )
        for _, job_id in found:
            if (raw := read_ddl_job(self._tikv, job_id, self._pd.tso())) is not None:
                yield DdlHistoryJob.from_json(raw)

    def wait_for_first(
        self, table: Table, after_version: int, ddls: Sequence[DdlRecord], wait: Callable[[float], bool]
    ) -> FinishedTableChange:
        """Return the same, once TiDB's history has it. `wait(seconds)` sleeps and returns True if the run is to stop.

        Raises Stopped besides.
        """
        waited, warned, pause = 0.0, 0.0, 0.02
        while (found := self.first(table, after_version, ddls)) is None:
            if waited - warned >= _WARN_INTERVAL_S:
                warned = waited
                log.warning("the schema change of %s isn't over: landing waits, %.0f s so far", table.full_name, waited)
            if wait(pause):
                raise LandingStopped(f"while waiting for the schema change of {table.full_name}")
            waited += pause
            pause = min(pause * 2, 1.0)
            self._is_fresh = False
        return found

    def _look(self, ddls: Sequence[DdlRecord]) -> None:
        ts = self._pd.tso()
        for record in ddls:
            if record.job_id not in self._jobs and (raw := read_ddl_job(self._tikv, record.job_id, ts)) is not None:
                self._jobs[record.job_id] = _known(DdlHistoryJob.from_json(raw))
        for job_id, data in read_raw_ddl_jobs(self._tikv, ts, self._jobs.keys() | self._landed):
            self._jobs[job_id] = _known(DdlHistoryJob.from_json(parse_object(data, f"DDL job {job_id}")))
        self._is_fresh = True


def _known(job: DdlHistoryJob) -> _JobTables | None:
    """Return which tables a job changes.

    Of several tables in one statement the job names one (RENAME TABLE, EXCHANGE PARTITION), and of a dropped database
    none.
    """
    if not job.finished:
        return None
    infos = (job.table_info, *job.table_infos)
    tables = frozenset({job.table_id, *(int(info["id"]) for info in infos if info is not None)})
    return _JobTables(job.schema_version, tables, job.schema_id if job.type == Action.DROP_SCHEMA else None)

"""The next DDL job that changes a table, from TiDB's history, also before its DDL binlog comes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from errors import Signal
from etl.explode import DdlRecord
from upstream import read_ddl_job
from upstream.ddl_actions import Action
from upstream.job import Job
from upstream.packed_jobs import PackedJobs
from upstream.schema import Table
from upstream.tikv.meta import read_raw_ddl_jobs

if TYPE_CHECKING:
    from upstream import PDClient, TiKVClient

log = logging.getLogger("sluice.land")

_WARN_EVERY_S = 5.0


class Stopped(Signal):
    """The run was stopped while it waited; nothing of the window has been committed."""


class Change(NamedTuple):
    """A finished DDL job, and a table as it leaves it: None if the table is gone, or goes on under another id."""

    job: Job
    left: Table | None


class ChangesToCome:
    """The finished jobs that aren't landed."""

    def __init__(self, pd: PDClient, tikv: TiKVClient, known: Collection[int], wait: Callable[[float], bool]) -> None:
        """`known`: ids of landed jobs. `wait(seconds)` sleeps and returns True if the run is to stop."""
        self._pd = pd
        self._tikv = tikv
        self._known = known
        self._wait = wait

    def first(self, table: Table, after_version: int, ddls: Sequence[DdlRecord]) -> Change | None:
        """Return the first job behind a schema version that changes a table; None without one.

        `ddls`: DDL binlogs that aren't landed; their jobs may be among the known. Raises TiKVError, PDError,
        HistoryError, SchemaError.
        """
        ts = self._pd.tso()
        raws = (read_ddl_job(self._tikv, record.job_id, ts) for record in ddls)
        jobs = [job for raw in raws if raw is not None and (job := Job.from_json(raw)).schema_version > after_version]
        jobs.extend(PackedJobs.of(read_raw_ddl_jobs(self._tikv, ts, self._known)).after(after_version))
        own = [job for job in jobs if job.finished and _changes(job, table)]
        if not own:
            return None
        job = min(own, key=lambda job: job.schema_version)
        info = next((info for info in (job.table_info, *job.table_infos) if info and int(info["id"]) == table.id), None)
        return Change(job, Table.from_tidb(info, table.schema_id, table.schema_name) if info is not None else None)

    def await_first(self, table: Table, after_version: int, ddls: Sequence[DdlRecord]) -> Change:
        """Return the same, once TiDB's history has it. Raises Stopped besides."""
        waited, warned, pause = 0.0, 0.0, 0.02
        while (found := self.first(table, after_version, ddls)) is None:
            if waited - warned >= _WARN_EVERY_S:
                warned = waited
                log.warning("the schema change of %s isn't over: landing waits, %.0f s so far", table.full_name, waited)
            if self._wait(pause):
                raise Stopped(f"while waiting for the schema change of {table.full_name}")
            waited += pause
            pause = min(pause * 2, 1.0)
        return found


def _changes(job: Job, table: Table) -> bool:
    """Return whether a job changes a table, or ends it.

    Of several tables in one statement the job names one (RENAME TABLE, EXCHANGE PARTITION), and of a dropped database
    none.
    """
    infos = (job.table_info, *job.table_infos)
    if job.type == Action.DROP_SCHEMA:
        return job.schema_id == table.schema_id
    return table.id == job.table_id or any(info is not None and int(info["id"]) == table.id for info in infos)

"""Find DDL jobs in TiDB's history: the job of a binlog, and the next one that changes a table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sluice.errors import Signal
from sluice.etl.landing.extract import DdlRecord
from sluice.tidb import read_ddl_job, read_schema_version
from sluice.tidb.ddl_actions import Action
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import Table, parse_object
from sluice.tidb.tikv.meta import read_raw_ddl_jobs, read_table_info

if TYPE_CHECKING:
    from sluice.tidb import PDClient, TiKVClient

log = logging.getLogger("sluice.land")

_T = TypeVar("_T")
Wait = Callable[[float], bool]
"""Sleep for some seconds; True if the run is to stop."""

_WARN_INTERVAL_S = 5.0
_RETRY_DELAYS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class LandingStopped(Signal):
    """The run was stopped while it waited; nothing of the window has been committed."""


class FinishedTableChange(NamedTuple):
    """A finished DDL job, and a table as the job leaves it."""

    job: DdlHistoryJob
    left: Table | None
    """None if the table is gone, or continues under another id."""


class _JobTables(NamedTuple):
    """The tables that a finished job changes."""

    schema_version: int
    tables: frozenset[int]
    dropped_schema: int | None

    def changes(self, table: Table) -> bool:
        """Return whether the job changes or drops a table."""
        return table.id in self.tables or self.dropped_schema == table.schema_id


class FinishedJobs:
    """The finished DDL jobs by id, as TiDB's history has them at the time of each call."""

    def __init__(self, pd: PDClient, tikv: TiKVClient) -> None:
        self._pd = pd
        self._tikv = tikv

    def find(self, job_id: int, schema_state: int | None = None) -> DdlHistoryJob | None:
        """Return a job; None while TiDB's history doesn't have it.

        Raises TiKVError, PDError, HistoryError.

        `schema_state`: that of the job's binlog, see `DdlHistoryJob.from_json`.
        """
        raw = read_ddl_job(self._tikv, job_id, self._pd.tso())
        return DdlHistoryJob.from_json(raw, schema_state) if raw is not None else None

    def await_job(self, record: DdlRecord, wait: Wait) -> DdlHistoryJob:
        """Return the job of a DDL binlog.

        TiDB moves it to the history one transaction later, which is waited for.
        """
        return _await(
            lambda: self.find(record.job_id, record.schema_state),
            wait,
            f"DDL job {record.job_id} (commit_ts {record.commit_ts}) in TiDB's history",
        )


class UnlandedJobs:
    """The finished jobs that aren't landed.

    Each is parsed once: a history may hold tens of thousands.
    """

    def __init__(self, pd: PDClient, tikv: TiKVClient, landed: Collection[int]) -> None:
        """Create the unlanded jobs; `landed`: ids of jobs that were landed before."""
        self._pd = pd
        self._tikv = tikv
        self._landed = landed
        self._jobs: dict[int, _JobTables | None] = {}
        """Jobs by id; None: the job changed nothing."""
        self._is_fresh = False

    def begin(self) -> None:
        """Begin a window: the next call reads the DDL history again."""
        self._is_fresh = False

    def first_change(
        self, table: Table, after_version: int, ddls: Sequence[DdlRecord]
    ) -> FinishedTableChange | None:
        """Return the first job behind a schema version that changes a table; None without one.

        `ddls`: the window's DDL binlogs, whose jobs may be among the landed ones. Raises TiKVError,
        PDError, HistoryError, SchemaError.
        """
        job = next(self.all(table, after_version, ddls), None)
        if job is None:
            return None
        info = next(
            (
                info
                for info in (job.table_info, *job.table_infos)
                if info and int(info["id"]) == table.id
            ),
            None,
        )
        return FinishedTableChange(
            job,
            Table.from_tidb(info, table.schema_id, table.schema_name) if info is not None else None,
        )

    def all(
        self, table: Table, after_version: int, ddls: Sequence[DdlRecord] = ()
    ) -> Iterator[DdlHistoryJob]:
        """Yield all such jobs, by ascending schema version. Raises as `first_change`."""
        if not self._is_fresh:
            self._refresh(ddls)
        found = sorted(
            (known.schema_version, job_id)
            for job_id, known in self._jobs.items()
            if known is not None and known.schema_version > after_version and known.changes(table)
        )
        for _, job_id in found:
            if (raw := read_ddl_job(self._tikv, job_id, self._pd.tso())) is not None:
                yield DdlHistoryJob.from_json(raw)

    def await_first_change(
        self, table: Table, after_version: int, ddls: Sequence[DdlRecord], wait: Wait
    ) -> FinishedTableChange:
        """Return the same, once TiDB's history has it. Raises LandingStopped besides."""

        def find() -> FinishedTableChange | None:
            found = self.first_change(table, after_version, ddls)
            self._is_fresh = found is not None
            return found

        return _await(find, wait, f"the end of the schema change of table {table.full_name}")

    def latest_info(
        self, table: Table, after_version: int, newest: int, wait: Wait
    ) -> Mapping[str, Any] | None:
        """Return a table's TableInfo as it is now; if the table is gone, as the next job left it.

        `after_version`: that of the table's last landed DDL. A store whose schema version is behind
        `newest`, which rows name, is waited for. Raises LandingStopped besides.
        """
        for pause in (*_RETRY_DELAYS_S, None):
            info = read_table_info(self._tikv, table.schema_id, table.id, self._pd.tso())
            if info is not None:
                return info
            self.begin()
            for job in self.all(table, after_version):
                if job.table_id == table.id and job.table_info is not None:
                    return job.table_info
            if pause is None or read_schema_version(self._tikv, self._pd.tso()) >= newest:
                break
            if wait(pause):
                raise LandingStopped(f"while waiting for what becomes of table {table.full_name}")
        return None

    def definitions(self, table: Table, after_version: int) -> list[Table]:
        """Return the definitions that a table has had since a schema version, in order.

        The last one may be that of a job that isn't over.
        """
        self.begin()
        infos = [job.table_info for job in self.all(table, after_version)]
        infos.append(read_table_info(self._tikv, table.schema_id, table.id, self._pd.tso()))
        own = [info for info in infos if info is not None and int(info["id"]) == table.id]
        return [Table.from_tidb(info, table.schema_id, table.schema_name) for info in own]

    def _refresh(self, ddls: Sequence[DdlRecord]) -> None:
        ts = self._pd.tso()
        for record in ddls:
            if (
                record.job_id not in self._jobs
                and (raw := read_ddl_job(self._tikv, record.job_id, ts)) is not None
            ):
                self._jobs[record.job_id] = _known(DdlHistoryJob.from_json(raw))
        for job_id, data in read_raw_ddl_jobs(self._tikv, ts, self._jobs.keys() | self._landed):
            self._jobs[job_id] = _known(
                DdlHistoryJob.from_json(parse_object(data, f"DDL job {job_id}"))
            )
        self._is_fresh = True


def _await(find: Callable[[], _T | None], wait: Wait, awaited: str) -> _T:
    waited_s, warned_s, pause_s = 0.0, 0.0, 0.02
    while (found := find()) is None:
        if waited_s - warned_s >= _WARN_INTERVAL_S:
            warned_s = waited_s
            log.warning("landing waits for %s: waited_s=%.0f", awaited, waited_s)
        if wait(pause_s):
            raise LandingStopped(f"while waiting for {awaited}")
        waited_s += pause_s
        pause_s = min(pause_s * 2, 1.0)
    return found


def _known(job: DdlHistoryJob) -> _JobTables | None:
    """Return which tables a job changes.

    Of several tables in one statement the job names one (RENAME TABLE, EXCHANGE PARTITION), and of
    a dropped database none.
    """
    if not job.finished:
        return None
    infos = (job.table_info, *job.table_infos)
    tables = frozenset({job.table_id, *(int(info["id"]) for info in infos if info is not None)})
    return _JobTables(
        job.schema_version, tables, job.schema_id if job.type == Action.DROP_SCHEMA else None
    )

"""Find the DDL jobs in a transaction's changes, of which TiDB writes a binlog.

A running job is a row of `mysql.tidb_ddl_job`, in TiDB before 6.2 or by a setting an item of the
list `DDLJobList`. TiDB rewrites it in the transaction of each step. The step after which the job is
done makes the new definition visible, so its transaction is the DDL's. A later transaction removes
the row and puts the job into the history.

TiDB 8.0 to 8.2 can create tables without a row: then the job is in the history at once, with its
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sluice.pump_service.capture.schema_tracker import MetaChange
from sluice.tidb.ddl_actions import Action, action_name
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import parse_object
from sluice.tidb.tikv.meta import job_of_row

DDL_JOB_TABLE_ID = 0xFFFF_FFFF_FFFF - 1
"""The id of `mysql.tidb_ddl_job`."""

_ROLLED_BACK, _DONE = 3, 4
_WITHOUT_BINLOG = frozenset(
    {Action.UPDATE_TIFLASH_REPLICA_STATUS, Action.ALTER_TABLE_CACHE, Action.ALTER_TABLE_NOCACHE}
)
_CREATES_TABLES = frozenset({Action.CREATE_TABLE, Action.CREATE_TABLES})
_MAX_REMEMBERED = 1024


class DdlBinlog(NamedTuple):
    """Hold what a DDL binlog names of its job."""

    job_id: int
    schema_state: int
    query: str


class DdlJobs:
    """Find each job once: TiDB may write a job's row several times in the same state."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], None] = {}

    def find(
        self, rows: Iterable[tuple[bytes, bytes]], changes: Iterable[MetaChange]
    ) -> list[DdlBinlog]:
        """Return the DDL of a transaction.

        `rows`: key and value of each row put into the table of running jobs.

        Raises SchemaError, HistoryError.
        """
        found = []
        for document in _documents(rows, changes):
            job = DdlHistoryJob.from_json(document)
            key = job.id, job.schema_state
            if job.type in _WITHOUT_BINLOG or key in self._seen:
                continue
            if job.state in (_ROLLED_BACK, _DONE) or job.starts_dropping_column:
                self._remember(key)
                found.append(_binlog_of(job))
        found += self._created_at_once(changes)
        return found

    def _created_at_once(self, changes: Iterable[MetaChange]) -> Iterator[DdlBinlog]:
        tables = {
            change.field
            for change in changes
            if change.field.startswith(b"Table:") and change.value
        }
        if not tables:
            return
        for change in changes:
            if change.name == b"DDLJobHistory" and change.kind == "h" and change.value:
                job = DdlHistoryJob.from_json(parse_object(change.value, "a finished DDL job"))
                key = job.id, job.schema_state
                if job.type in _CREATES_TABLES and job.finished and key not in self._seen:
                    self._remember(key)
                    yield _binlog_of(job)

    def _remember(self, key: tuple[int, int]) -> None:
        self._seen[key] = None
        while len(self._seen) > _MAX_REMEMBERED:
            del self._seen[next(iter(self._seen))]


def _binlog_of(job: DdlHistoryJob) -> DdlBinlog:
    """Return what the binlog names; readers take one without a statement for damaged."""
    return DdlBinlog(job.id, job.schema_state, job.query or f"/* {action_name(job.type)} */")


def _documents(
    rows: Iterable[tuple[bytes, bytes]], changes: Iterable[MetaChange]
) -> Iterator[dict[str, Any]]:
    for key, value in rows:
        yield job_of_row(key, value)
    for change in changes:
        if change.kind == "l" and change.value:
            yield parse_object(change.value, "a DDL job of a list")

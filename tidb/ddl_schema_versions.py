"""The schema versions of a DDL job, and how rows show them before and after its binlog.

TiDB changes a schema in steps, each with a version of its own, writes the DDL binlog with the last
one, and lets sessions be one version behind. Rows carry the version of their session.
``Diff:<version>`` in TiKV names the table of each version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sluice.tidb import tso
from sluice.tidb.ddl_actions import LOOSENS_KEYS, MOVES_ROWS, REMOVES_PARTITIONS
from sluice.tidb.ddl_job import FinishedRowMove
from sluice.tidb.history import RowMove
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import STATE_PUBLIC, STATE_WRITE_ONLY, Index, Table

ReadDiff = Callable[[int], Mapping[str, Any] | None]
"""Maps a schema version to its diff, None if TiKV has none."""

LONGEST_STATEMENT = tso.span(10_000)
"""Ten seconds of TSO."""
_MAX_VERSIONS_BACK = 256
_MAX_VERSION_GAP = 32  # versions of other jobs between two of one


def versions_of(job: DdlHistoryJob, since: int, read_diff: ReadDiff) -> list[int]:
    """Return the job's schema versions, ascending.

    `since`: the version of the job before it on the same table.
    """
    found = [job.schema_version]
    if job.type not in MOVES_ROWS:
        return found
    for version in range(
        job.schema_version - 1, max(since, job.schema_version - _MAX_VERSIONS_BACK), -1
    ):
        diff = read_diff(version)
        if diff is None or found[0] - version > _MAX_VERSION_GAP:
            break
        if int(diff.get("type") or 0) == job.type and job.table_id in (
            diff.get("table_id"),
            diff.get("old_table_id"),
        ):
            found.insert(0, version)
    return found


def possibly_applied_through(job: DdlHistoryJob) -> int:
    """Return the last commit ts of rows by statements that were planned before the job.

    Whatever version these rows name.
    """
    return job.finished_ts + LONGEST_STATEMENT


def finished_row_move(moved: RowMove, versions: Iterable[int]) -> FinishedRowMove:
    """Return the record of a job that has moved rows, for a window record."""
    job = moved.job
    return FinishedRowMove(
        job.type,
        job.id,
        job.start_ts,
        job.finished_ts,
        job.schema_version,
        tuple(versions),
        moved.before,
        moved.effect,
    )


def loosened_tables(versions: Iterable[int], read_diff: ReadDiff) -> dict[int, bool]:
    """Return the tables that may have lost a unique key, or (True) partitions, in these versions.

    Rows of lost partitions conflict with no key.
    """
    found: dict[int, bool] = {}
    for version in versions:
        diff = read_diff(version) or {}
        kind, table_id = int(diff.get("type") or 0), int(diff.get("table_id") or 0)
        if kind in LOOSENS_KEYS or kind in REMOVES_PARTITIONS:
            found[table_id] = found.get(table_id, False) or kind in REMOVES_PARTITIONS
    return found


def relaxed_indexes(table: Table, info: Mapping[str, Any] | None) -> list[int]:
    """Return the ids of unique indexes that the upstream no longer enforces, ahead of DDL binlogs.

    `info`: the table's present TableInfo, None if the table is gone. An index that is being dropped
    is enforced while rows are still written to it.
    """
    if info is None:
        return []
    states = {
        int(index["id"]): int(index.get("state") or 0) for index in info.get("index_info") or ()
    }
    return [
        index.id
        for index in table.indexes
        if _is_enforced(index) and states.get(index.id, 0) not in (STATE_PUBLIC, STATE_WRITE_ONLY)
    ]


def as_info(table: Table) -> dict[str, Any]:
    """Return the part of a table's TableInfo that `relaxed_indexes` needs."""
    return {"index_info": [{"id": index.id, "state": index.state} for index in table.indexes]}


def _is_enforced(index: Index) -> bool:
    return (index.unique or index.primary) and index.state == STATE_PUBLIC

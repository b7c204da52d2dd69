"""Plan on the driver which windows and chunks of a snapshot are read for some tables.

They are read in portions, and their rows distributed to a number of buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.etl.changes.planning import move_of
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.copy.source import RowSource
from sluice.etl.history.as_of.lineage import StartTooLateError, TableGroup
from sluice.etl.history.as_of.read_tasks import (
    GroupBuckets,
    PartitionSurvivors,
    ReadTask,
    SavedRows,
    SnapshotRows,
    TimeTravelPlan,
    WindowChanges,
    WindowParts,
)
from sluice.etl.history.errors import AsOfError
from sluice.relay import WindowLog, WindowRecord
from sluice.tidb import tso
from sluice.tidb.ddl_actions import REMOVES_PARTITIONS
from sluice.tidb.ddl_job import DdlJob, FinishedRowMove
from sluice.tidb.ddl_schema_versions import LONGEST_STATEMENT
from sluice.tidb.schema import Table

_MAX_TASK_CHANGES, _MAX_TASK_BYTES = 200_000, 64 << 20
_TARGET_BUCKET_BYTES = 48 << 20
_MAX_BUCKETS = 10_000
"""A table of 160 GB has so many. Beyond, buckets grow: a portion would be cut into tiny pieces."""
_MAX_UNPARTITIONED_BYTES = 2 << 30
_UNPACKED_FACTOR = 3  # rows in memory, to their bytes in a file


@dataclass(frozen=True, slots=True)
class SnapshotStart:
    """A snapshot: the rows of all its tables as of `ts` (TSO)."""

    ts: int
    tables: Mapping[int, Table]
    """The snapshot's tables, by id."""
    source: RowSource


def make_time_travel_plan(
    log: WindowLog,
    start_ts: int,
    until_ts: int,
    found: Iterable[TableGroup],
    snapshot: SnapshotStart | None,
) -> TimeTravelPlan:
    """Make the plan. Raises AsOfError, relay errors, CopyError."""
    families = list(found)
    tasks: list[ReadTask] = []
    if snapshot is not None:
        tasks += _snapshot_tasks(families, snapshot)
    tasks += _survivor_tasks(log, families)
    tasks += _ChangeTasks(families).of(log, start_ts, until_ts)
    spec = snapshot.source.spec() if snapshot is not None else None
    return TimeTravelPlan(log.url, spec, count_buckets(families, tasks), tuple(tasks))


def _snapshot_tasks(families: list[TableGroup], snapshot: SnapshotStart) -> Iterator[SnapshotRows]:
    for family in families:
        for table_id in sorted(family.based):
            for chunk in snapshot.source.chunks(snapshot.tables[table_id]):
                yield SnapshotRows(table_id, chunk.to_json(), chunk.bytes)


def _survivor_tasks(log: WindowLog, families: list[TableGroup]) -> Iterator[PartitionSurvivors]:
    for family in families:
        for ddl in family.ddls.values():
            move = move_of(ddl.past_move(ddl.before)) if ddl.before else None
            if move is None or not move.drops or move.version >= move.last_version:
                continue
            windows = list(_reaching_back(log, ddl.began_ts, ddl.commit_ts, family.ids, ddl.title))
            yield PartitionSurvivors(ddl.commit_ts, tuple(map(_parts, windows)), _bytes(windows))


def _reaching_back(
    log: WindowLog, from_ts: int, to_ts: int, ids: Iterable[int], what: str
) -> Iterator[WindowRecord]:
    """Yield windows that may lie before the start.

    Raises StartTooLateError where the log doesn't reach.
    """
    first = log.first()
    if first is None or from_ts < first.lo:
        raise StartTooLateError(
            f"{what} began at {tso.text(from_ts)}, before the log {log.url} does: which rows it"
            " keeps is unknown"
        )
    wanted = set(ids)
    return (window for window in log.windows(from_ts, to_ts) if _concerns(window, wanted))


def _concerns(window: WindowRecord, ids: set[int]) -> bool:
    """Return whether rows or DDL inside may be about these tables."""
    if any(str(table_id) in window.tables for table_id in ids):
        return True
    return any(
        str(table_id) in (ddl.get("effect") or {}).get("tables", {})
        for ddl in window.ddls
        for table_id in ids
    )


def _parts(window: WindowRecord, moved: tuple[FinishedRowMove, ...] = ()) -> WindowParts:
    return WindowParts(tuple(window.parts), moved)


def _bytes(windows: Iterable[WindowRecord]) -> int:
    return sum(part.bytes for window in windows for part in window.parts)


@dataclass(slots=True)
class _ChangeTasks:
    """Windows in portions that workers read side by side.

    Behind DDL that emptied partitions rows are counted, so all of that goes to one.
    """

    families: list[TableGroup]
    _windows: list[WindowParts] = field(default_factory=list)
    _changes: int = 0
    _size: int = 0

    def of(self, log: WindowLog, start_ts: int, until_ts: int) -> Iterator[WindowChanges]:
        ids = {table_id for family in self.families for table_id in family.ids}
        counting_until = 0
        counted: tuple[tuple[int, int, tuple[WindowParts, ...]], ...] | None = None
        if start_ts >= until_ts:
            return
        for window in log.windows(start_ts, until_ts):
            if not _concerns(window, ids):
                continue
            moved = tuple(
                past
                for past in RecordedSchema.from_window(window).moved
                if ids & past.before.keys()
            )
            if counted is None:
                counted = tuple(_windows_to_recount(log, moved, start_ts, ids))
            if self._is_full and window.lo >= counting_until and not any(map(_is_counted, moved)):
                yield self._pop_task(start_ts, until_ts, counted)
                counted = ()
            self._windows.append(_parts(window, moved))
            self._changes += window.changes
            self._size += _bytes([window])
            counting_until = max(
                [counting_until, *(_counting_until(ddl) for ddl in self._ddls(window))]
            )
        if self._windows:
            yield self._pop_task(start_ts, until_ts, counted or ())

    def _ddls(self, window: WindowRecord) -> Iterator[DdlJob]:
        for family in self.families:
            yield from (
                ddl for commit_ts, ddl in family.ddls.items() if window.lo < commit_ts <= window.hi
            )

    @property
    def _is_full(self) -> bool:
        return self._changes >= _MAX_TASK_CHANGES or self._size >= _MAX_TASK_BYTES

    def _pop_task(
        self,
        start_ts: int,
        until_ts: int,
        counted: tuple[tuple[int, int, tuple[WindowParts, ...]], ...],
    ) -> WindowChanges:
        made = WindowChanges(tuple(self._windows), start_ts, until_ts, counted, self._size)
        self._windows, self._changes, self._size = [], 0, 0
        return made


def _counting_until(ddl: DdlJob) -> int:
    return ddl.finished_ts + LONGEST_STATEMENT if _is_counted(ddl) and ddl.finished_ts else 0


def _is_counted(ddl: DdlJob | FinishedRowMove) -> bool:
    """Return whether rows are counted behind the DDL.

    They are if TiKV wasn't asked which are in the emptied partitions.
    """
    return ddl.type in REMOVES_PARTITIONS and not ddl.asked


def _windows_to_recount(
    log: WindowLog, moved: tuple[FinishedRowMove, ...], start_ts: int, ids: set[int]
) -> Iterator[tuple[int, int, tuple[WindowParts, ...]]]:
    for past in moved:
        if _is_counted(past) and past.finished_ts + LONGEST_STATEMENT > start_ts > past.began_ts:
            windows = _reaching_back(log, past.began_ts, start_ts, ids, f"DDL job {past.job_id}")
            yield past.job_id, past.began_ts, tuple(map(_parts, windows))


def count_buckets(
    families: Iterable[TableGroup], tasks: Sequence[ReadTask]
) -> tuple[GroupBuckets, ...]:
    """Return each group's buckets for what the tasks read.

    Raises AsOfError for a group of one bucket that would be too large.
    """
    log_bytes = sum(task.bytes for task in tasks if not isinstance(task, SnapshotRows | SavedRows))
    first, found = 0, []
    for family in families:
        snapshot_bytes = sum(
            task.bytes
            for task in tasks
            if isinstance(task, SnapshotRows | SavedRows) and task.table_id in family.ids
        )
        size = _UNPACKED_FACTOR * (snapshot_bytes + log_bytes)
        if not family.is_partitioned and size > _MAX_UNPARTITIONED_BYTES:
            names = sorted(
                {
                    version.table.full_name
                    for stretch in family.versions
                    for version in stretch.values()
                }
            )
            raise AsOfError(
                f"{', '.join(names)}: DDL left no column as it was, so the rows can't be dealt to"
                f" several workers, and are too many for one (about {size:,} bytes)",
                hint="have a snapshot made after that DDL: `sluice snapshot make`",
            )
        count = min(_MAX_BUCKETS, size // _TARGET_BUCKET_BYTES + 1) if family.is_partitioned else 1
        found.append(GroupBuckets(family, first, int(count)))
        first += int(count)
    return tuple(found)

"""Made on the driver: which windows and chunks of a base are read for some tables, in which portions, and into how many
buckets their rows are dealt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from etl.asof.errors import AsOfError
from etl.asof.lineage import Family, StartTooLateError
from etl.asof.plan import BaseRows, Buckets, Changes, KeptRows, Plan, Task, WindowParts
from etl.copy.source import Source
from etl.prepare import move_of
from etl.recorded_schema import RecordedSchema
from relay import Window, WindowLog
from upstream import tso
from upstream.ddl_actions import REMOVES_PARTITIONS
from upstream.ddl_job import DdlJob, PastMove
from upstream.job_versions import LONGEST_STATEMENT
from upstream.schema import Table

_TASK_CHANGES, _TASK_BYTES = 200_000, 64 << 20
_BUCKET_BYTES = 48 << 20
_MOST_BUCKETS = 1_000
_MOST_UNDEALT_BYTES = 2 << 30
_SPREAD = 3  # rows in memory, to their bytes in a file


@dataclass(frozen=True, slots=True)
class Start:
    """A base: the rows of all its tables as of `ts` (TSO)."""

    ts: int
    tables: Mapping[int, Table]
    """By id."""
    source: Source


def make_plan(log: WindowLog, start_ts: int, until_ts: int, found: Iterable[Family], base: Start | None) -> Plan:
    """Raises AsOfError, relay errors, CopyError."""
    families = list(found)
    tasks: list[Task] = []
    if base is not None:
        tasks += _base_tasks(families, base)
    tasks += _kept_tasks(log, families)
    tasks += _Portions(families).of(log, start_ts, until_ts)
    spec = base.source.spec() if base is not None else None
    return Plan(log.url, spec, tuple(_buckets(families, tasks)), tuple(tasks))


def _base_tasks(families: list[Family], base: Start) -> Iterator[BaseRows]:
    for family in families:
        for table_id in sorted(family.based):
            for chunk in base.source.chunks(base.tables[table_id]):
                yield BaseRows(table_id, chunk.to_json(), chunk.bytes)


def _kept_tasks(log: WindowLog, families: list[Family]) -> Iterator[KeptRows]:
    for family in families:
        for ddl in family.ddls.values():
            move = move_of(ddl.past_move(ddl.before)) if ddl.before else None
            if move is None or not move.drops or move.version >= move.last_version:
                continue
            windows = list(_reaching_back(log, ddl.began_ts, ddl.commit_ts, family.ids, ddl.title))
            yield KeptRows(ddl.commit_ts, tuple(map(_parts, windows)), _bytes(windows))


def _reaching_back(log: WindowLog, from_ts: int, to_ts: int, ids: Iterable[int], what: str) -> Iterator[Window]:
    """Windows that may lie before the start. Raises StartTooLateError where the log doesn't reach."""
    first = log.first()
    if first is None or from_ts < first.lo:
        raise StartTooLateError(
            f"{what} began at {tso.text(from_ts)}, before the log {log.url} does: which rows it keeps can't be told"
        )
    wanted = set(ids)
    return (window for window in log.windows(from_ts, to_ts) if _concerns(window, wanted))


def _concerns(window: Window, ids: set[int]) -> bool:
    """Whether rows or DDL inside may be about these tables."""
    if any(str(table_id) in window.tables for table_id in ids):
        return True
    return any(str(table_id) in (ddl.get("effect") or {}).get("tables", {}) for ddl in window.ddls for table_id in ids)


def _parts(window: Window, moved: tuple[PastMove, ...] = ()) -> WindowParts:
    return WindowParts(tuple(window.parts), moved)


def _bytes(windows: Iterable[Window]) -> int:
    return sum(part.bytes for window in windows for part in window.parts)


@dataclass(slots=True)
class _Portions:
    """Windows in portions that workers read side by side. Behind DDL that emptied partitions rows are counted, so all
    of that goes to one.
    """

    families: list[Family]
    _windows: list[WindowParts] = field(default_factory=list)
    _changes: int = 0
    _size: int = 0

    def of(self, log: WindowLog, start_ts: int, until_ts: int) -> Iterator[Changes]:
        ids = {table_id for family in self.families for table_id in family.ids}
        counting_until = 0
        counted: tuple[tuple[int, int, tuple[WindowParts, ...]], ...] | None = None
        if start_ts >= until_ts:
            return
        for window in log.windows(start_ts, until_ts):
            if not _concerns(window, ids):
                continue
            moved = tuple(past for past in RecordedSchema.of(window).moved if ids & past.before.keys())
            if counted is None:
                counted = tuple(_counted_before(log, moved, start_ts, ids))
            if self._is_full and window.lo >= counting_until and not any(map(_is_counted, moved)):
                yield self._take(start_ts, until_ts, counted)
                counted = ()
            self._windows.append(_parts(window, moved))
            self._changes += window.changes
            self._size += _bytes([window])
            counting_until = max([counting_until, *(_counting_until(ddl) for ddl in self._ddls(window))])
        if self._windows:
            yield self._take(start_ts, until_ts, counted or ())

    def _ddls(self, window: Window) -> Iterator[DdlJob]:
        for family in self.families:
            yield from (ddl for commit_ts, ddl in family.ddls.items() if window.lo < commit_ts <= window.hi)

    @property
    def _is_full(self) -> bool:
        return self._changes >= _TASK_CHANGES or self._size >= _TASK_BYTES

    def _take(
        self, start_ts: int, until_ts: int, counted: tuple[tuple[int, int, tuple[WindowParts, ...]], ...]
    ) -> Changes:
        made = Changes(tuple(self._windows), start_ts, until_ts, counted, self._size)
        self._windows, self._changes, self._size = [], 0, 0
        return made


def _counting_until(ddl: DdlJob) -> int:
    return ddl.finished_ts + LONGEST_STATEMENT if _is_counted(ddl) and ddl.finished_ts else 0


def _is_counted(ddl: DdlJob | PastMove) -> bool:
    """Whether rows are counted behind it, for TiKV wasn't asked which are in the emptied partitions."""
    return ddl.type in REMOVES_PARTITIONS and not ddl.asked


def _counted_before(
    log: WindowLog, moved: tuple[PastMove, ...], start_ts: int, ids: set[int]
) -> Iterator[tuple[int, int, tuple[WindowParts, ...]]]:
    for past in moved:
        if _is_counted(past) and past.finished_ts + LONGEST_STATEMENT > start_ts > past.began_ts:
            windows = _reaching_back(log, past.began_ts, start_ts, ids, f"DDL job {past.job_id}")
            yield past.job_id, past.began_ts, tuple(map(_parts, windows))


def _buckets(families: list[Family], tasks: list[Task]) -> Iterator[Buckets]:
    log_bytes = sum(task.bytes for task in tasks if not isinstance(task, BaseRows))
    first = 0
    for family in families:
        base_bytes = sum(task.bytes for task in tasks if isinstance(task, BaseRows) and task.table_id in family.ids)
        size = _SPREAD * (base_bytes + log_bytes)
        if not family.is_dealt and size > _MOST_UNDEALT_BYTES:
            names = sorted({version.table.full_name for stretch in family.versions for version in stretch.values()})
            raise AsOfError(
                f"{', '.join(names)}: DDL left no column as it was, so the rows can't be dealt to several workers, and"
                f" are too many for one (about {size:,} bytes)",
                way_out="have a base made after that DDL: `sluice base make`",
            )
        count = min(_MOST_BUCKETS, size // _BUCKET_BYTES + 1) if family.is_dealt else 1
        yield Buckets(family, first, int(count))
        first += int(count)


def with_buckets(plan: Plan, least: int) -> Plan:
    """The same with at least so many buckets a family, where rows can be dealt: the work of several cores."""
    first, found = 0, []
    for one in plan.families:
        count = max(one.count, least) if one.family.is_dealt else 1
        found.append(Buckets(one.family, first, count))
        first += count
    return replace(plan, families=tuple(found))

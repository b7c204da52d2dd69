"""Report from when to when one can restore, table by table.

What it takes, and for how long there is room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.etl.history.retain.catalogue_summary import DaySummary, SnapshotSummary, changes_of
from sluice.etl.history.retain.contents import ArchiveContents, ChainGap, read_contents
from sluice.etl.history.retain.facts import inventory_of
from sluice.etl.history.retain.policy import ArchiveInventory, pinned_by, recovery_window_start
from sluice.etl.history.retain.ranges import TableRange, table_ranges
from sluice.etl.history.retain.run import policy_of
from sluice.etl.history.retain.space import (
    DiskUsage,
    archive_usage,
    days_until_full,
    relay_usage,
    snapshots_usage,
)
from sluice.etl.history.retain.summaries import CachedSummaries, readable_snapshots
from sluice.etl.history.retain.table_events import ReadStart, restorable_at
from sluice.etl.settings import Settings
from sluice.relay import Failure, RelayLog
from sluice.relay.archive import Archive, ArchiveSnapshot, Pin, Pins, active_pins
from sluice.relay.jobs import Jobs
from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import LocalStorage
from sluice.tidb import tso
from sluice.tidb.table_name import TableName, full_name

__all__ = [
    "ArchiveStatus",
    "FileSystemUsage",
    "UnknownTable",
    "archive_status",
    "tables_restorable_at",
]

RETAIN = "retain"
"""The task of the DAG `archive` whose failures are known by this name."""
_TASKS = ("archive", "compact", RETAIN)
_RETENTION_SETTINGS = ("keep", "snapshots_every", "snapshots_keep", "drills_every")


@dataclass(frozen=True, slots=True)
class UnknownTable:
    """A table with archived changes, and without a snapshot of the rows before them.

    It can't be restored at any moment yet.
    """

    table_id: int
    name: str
    changes: int


@dataclass(frozen=True, slots=True)
class FileSystemUsage:
    """The file system of `what`; full in `days` at today's rate, None: never."""

    what: tuple[str, ...]
    free_bytes: int
    total_bytes: int
    full_in_days: float | None


@dataclass(frozen=True, slots=True)
class ArchiveStatus(JsonDocument):
    """The restorable range of each table, faults, and disk usage.

    Moments are TSO, 0 where there is none. `whole_from_ts`: from here on every table that is known
    can be restored, through `landed_ts`; `promised_ts`: from here on that stays so. `pinned_by`
    names what keeps the oldest part of the archive, `faults` what can't be read, `failures` why
    tasks of the DAG `archive` have stopped.
    """

    url: str
    lo: int
    hi: int
    landed_ts: int
    promised_ts: int
    whole_from_ts: int
    tables: tuple[TableRange, ...]
    unknown: tuple[UnknownTable, ...]
    holes: tuple[ChainGap, ...]
    faults: tuple[str, ...]
    snapshots: tuple[dict[str, Any], ...]
    held_by: str
    holds: tuple[Pin, ...]
    spaces: dict[str, DiskUsage]
    disks: tuple[FileSystemUsage, ...]
    drill: dict[str, Any] | None
    failures: tuple[Failure, ...]
    keep: dict[str, str]


def archive_status(settings: Settings) -> ArchiveStatus:
    """Look at everything but the rows.

    Raises RelayCorruptError for the relay log's own records, OSError.
    """
    relay, archive = settings.open_relay(), Archive.open(settings.archive_url)
    known = CachedSummaries(archive)
    contents = read_contents(archive, known.day)
    snapshots, faults = readable_snapshots(known.snapshot, archive)
    starts = [snapshot.snapshot for snapshot in snapshots]
    facts = inventory_of(archive, contents, starts, Pins(archive.storage).removal_mark().before_ts)
    jobs = Jobs.for_pipeline(relay)
    end = contents.segments[-1].hi if contents.segments else 0
    living = tuple(active_pins(archive, jobs.is_over, end).values())
    last = relay.last()
    spaces = _usages(settings, relay, contents, snapshots)
    tables = tuple(table_ranges(facts)) if facts is not None else ()
    keep, now = policy_of(settings), tso.wall_clock()
    return ArchiveStatus(
        url=archive.url,
        lo=facts.lo if facts is not None else 0,
        hi=facts.hi if facts is not None else 0,
        landed_ts=last.hi if last is not None else 0,
        promised_ts=recovery_window_start(facts, keep, now) if facts is not None else 0,
        whole_from_ts=_all_restorable_from(facts, tables),
        tables=tables,
        unknown=_unknown_tables(archive, facts, contents),
        holes=(*contents.holes, *_gap_before_landed(archive, relay, facts)),
        faults=tuple(faults),
        snapshots=tuple(_snapshot_json(snapshot) for snapshot in snapshots),
        held_by=pinned_by(facts, keep, now) if facts is not None else "",
        holds=living,
        spaces=spaces,
        disks=_disks(relay, archive, spaces),
        drill=_last_drill(jobs),
        failures=tuple(failure for failure in relay.failures.list() if failure.what in _TASKS),
        keep={"relay": settings.relay.keep}
        | {n: getattr(settings.archive, n) for n in _RETENTION_SETTINGS},
    )


def _all_restorable_from(facts: ArchiveInventory | None, tables: Sequence[TableRange]) -> int:
    """Return from when on every table can be restored, 0 if none can.

    The tables are those that exist now, or were dropped since.
    """
    if facts is None or not tables:
        return 0
    with_snapshot = [table.from_ts for table in tables if table.snapshot]
    return max(with_snapshot, default=facts.lo)


def _snapshot_json(snapshot: SnapshotSummary) -> dict[str, Any]:
    return {
        "id": snapshot.id,
        "ts": snapshot.ts,
        "made_ms": snapshot.made_ms,
        "made_from": snapshot.made_from,
        "tables": len(snapshot.tables),
        "rows": snapshot.rows,
        "bytes": snapshot.bytes,
        "refers_to": list(snapshot.refers_to),
    }


def _unknown_tables(
    archive: Archive, facts: ArchiveInventory | None, contents: ArchiveContents
) -> tuple[UnknownTable, ...]:
    """Return tables with changes of which it isn't known what they held before."""
    if facts is None:
        return ()
    known = {turn.table_id for turn in facts.turns if turn.begins or turn.takes}
    known |= {table_id for snapshot in facts.snapshots for table_id in snapshot.tables}
    after = min((segment.lo for segment in contents.unbroken), default=0)
    found: dict[int, int] = {}
    where: dict[int, str] = {}
    for day in contents.days:
        if day.segments[-1].lo < after:
            continue
        for table_id, count in _changes(archive, day, after).items():
            if table_id not in known:
                found[table_id] = found.get(table_id, 0) + count
                where[table_id] = day.day
    names = _names(archive, where)
    return tuple(UnknownTable(i, names.get(i, f"table {i}"), count) for i, count in found.items())


def _changes(archive: Archive, day: DaySummary, after: int) -> Mapping[int, int]:
    """Return a day's changes, behind the moment at which one of its segments begins."""
    if day.segments[0].lo >= after:
        return day.changes
    return changes_of(
        segment for segment in archive.catalogue.load(day.day).segments if segment.lo >= after
    )


def _names(archive: Archive, where: Mapping[int, str]) -> dict[int, str]:
    """Return the names of tables that were changed on some day, by id."""
    found: dict[int, str] = {}
    log = archive.log
    for day in sorted(set(where.values()), reverse=True):
        left = {table_id for table_id, last in where.items() if last == day}
        for segment in reversed(archive.catalogue.load(day).segments):
            if left & segment.tables.keys():
                for window in log.windows(segment.lo, segment.hi):
                    for table_id in [i for i in left if window.tables.get(str(i))]:
                        table = window.tables[str(table_id)]
                        found[table_id] = full_name(table["schema_name"], table["name"])
                        left.discard(table_id)
            if not left:
                break
    return found


def _gap_before_landed(
    archive: Archive, relay: RelayLog, facts: ArchiveInventory | None
) -> list[ChainGap]:
    first = relay.first()
    if facts is None or first is None or first.lo <= facts.hi:
        return []
    why = f"{archive.url} ends there, and {relay.url} has these windows no longer"
    return [ChainGap(facts.hi, first.lo, why)]


def _usages(
    settings: Settings,
    relay: RelayLog,
    contents: ArchiveContents,
    snapshots: Sequence[SnapshotSummary],
) -> dict[str, DiskUsage]:
    keep_ms = settings.archive.keep_ms
    return {
        "relay": relay_usage(relay, settings.relay.keep_ms),
        "log": archive_usage(contents.segments, keep_ms, lake=False),
        "lake": archive_usage(contents.segments, keep_ms, lake=True),
        "snapshots": snapshots_usage(snapshots, keep_ms),
    }


def _disks(
    relay: RelayLog, archive: Archive, spaces: dict[str, DiskUsage]
) -> tuple[FileSystemUsage, ...]:
    """Return the file systems of relay log and archive; an object store has no end."""
    places: dict[int, tuple[list[str], int, int]] = {}
    for storage, names in (
        (relay.storage, ["relay"]),
        (archive.storage, ["log", "lake", "snapshots"]),
    ):
        if isinstance(storage, LocalStorage) and (found := storage.disk()) is not None:
            device, free, total = found
            places.setdefault(device, ([], free, total))[0].extend(names)
    return tuple(
        FileSystemUsage(
            tuple(names),
            free,
            total,
            days_until_full(free, (spaces[name].growth for name in names)),
        )
        for names, free, total in places.values()
    )


def _last_drill(jobs: Jobs) -> dict[str, Any] | None:
    drills = [job for job in jobs.list() if job.spec.kind == "drill"]
    return drills[-1].status().to_json() if drills else None


def tables_restorable_at(
    settings: Settings, snapshot: ArchiveSnapshot | None, ts: int, *, whole: bool = True
) -> dict[int, str]:
    """Return the wanted tables that can be restored at `ts` (TSO): their names then, by id.

    They are restored from `snapshot` (None: from the archive's beginning) by reading the archive.
    `whole`: with all columns that a restore needs. Raises RelayCorruptError, OSError.
    """
    archive = Archive.open(settings.archive_url)
    facts = inventory_of(archive, read_contents(archive, CachedSummaries(archive).day), ())
    start = ReadStart(facts.lo if facts is not None else 0)
    if snapshot is not None:
        known = SnapshotSummary.from_snapshot(snapshot)
        start = known.snapshot if whole else ReadStart(known.ts, known.tables, known.id)
    turns = facts.turns if facts is not None else ()
    filters = settings.rules.filters
    restorable = restorable_at(start, turns, ts).items()
    return {
        i: origin.name
        for i, origin in restorable
        if filters.wants_table(*TableName.parse(origin.name))
    }

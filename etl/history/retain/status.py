"""Report from when to when one can restore, table by table.

What it takes, and for how long there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice.etl.history.retain.archive_view import ArchiveView
from sluice.etl.history.retain.catalogue_summary import SnapshotSummary
from sluice.etl.history.retain.contents import ArchiveContents, ChainGap, read_contents
from sluice.etl.history.retain.facts import inventory_of
from sluice.etl.history.retain.policy import ArchiveInventory, pinned_by, recovery_window_start
from sluice.etl.history.retain.promise import PromisedRange
from sluice.etl.history.retain.ranges import TableRange, table_ranges
from sluice.etl.history.retain.settings_policy import policy_of
from sluice.etl.history.retain.space import (
    DiskUsage,
    archive_usage,
    days_until_full,
    relay_usage,
    snapshots_usage,
)
from sluice.etl.history.retain.summaries import CachedSummaries
from sluice.etl.history.retain.table_events import ReadStart, restorable_at
from sluice.etl.settings import Settings
from sluice.relay import Failure, RelayLog
from sluice.relay.archive import Archive, ArchiveSnapshot, Pin, active_pins
from sluice.relay.jobs import Jobs
from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import LocalStorage
from sluice.tidb import tso
from sluice.tidb.table_name import TableName

__all__ = [
    "ArchiveStatus",
    "FileSystemUsage",
    "RestorableTables",
    "UnknownTable",
    "archive_status",
    "restorable_tables",
    "tables_restorable_at",
]

RETAIN = "retain"
"""The task of the DAG `archive` whose failures are known by this name."""
_TASKS = ("archive", "compact", RETAIN)
_RETENTION_SETTINGS = ("keep", "snapshots_every", "snapshots_keep", "drills_every")


@dataclass(frozen=True, slots=True)
class UnknownTable:
    """A table that a restore as of the archive's end would lack, and `why`.

    `changes`: how many of it are archived.
    """

    table_id: int
    name: str
    changes: int
    why: str


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

    Moments are TSO, 0 where there is none. `restorable`: the moments at which a restore of all
    tables is accepted. `whole_from_ts`: where the last of these ranges begins, if it ends with the
    archive; `promised_ts`: from here on that stays so. `unknown`: the tables that prevent it.
    `pinned_by` names what keeps the oldest part of the archive, `faults` what can't be read,
    `failures` why tasks of the DAG `archive` have stopped.
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
    restorable: tuple[PromisedRange, ...] = ()


@dataclass(frozen=True, slots=True)
class RestorableTables:
    """As of which moments (TSO) all tables can be restored, and what a restore would lack.

    The fields are those of `ArchiveStatus`.
    """

    hi: int
    promised_ts: int
    unknown: tuple[UnknownTable, ...]


def restorable_tables(settings: Settings) -> RestorableTables:
    """Return this part of `archive_status` alone, which takes less than half of its time.

    Raises RelayCorruptError, OSError.
    """
    view = ArchiveView.load(settings)
    restorable = view.promise.ranges() if view.promise is not None else ()
    promised_ts = _promised_ts(settings, view.facts, _whole_from(restorable, view.facts))
    hi = view.facts.hi if view.facts is not None else 0
    return RestorableTables(hi, promised_ts, _unknown_tables(view))


def archive_status(settings: Settings) -> ArchiveStatus:
    """Look at everything but the rows.

    Raises RelayCorruptError for the relay log's own records, OSError.
    """
    relay, view = settings.open_relay(), ArchiveView.load(settings)
    archive, contents, facts = view.archive, view.contents, view.facts
    snapshots = view.snapshots
    restorable = view.promise.ranges() if view.promise is not None else ()
    jobs = Jobs.for_pipeline(relay)
    end = contents.segments[-1].hi if contents.segments else 0
    living = tuple(active_pins(archive, jobs.is_over, end).values())
    last = relay.last()
    spaces = _usages(settings, relay, contents, snapshots)
    tables = tuple(table_ranges(facts, is_whole=view.is_whole)) if facts is not None else ()
    keep, now = policy_of(settings), tso.wall_clock()
    whole_from_ts = _whole_from(restorable, facts)
    return ArchiveStatus(
        url=archive.url,
        lo=facts.lo if facts is not None else 0,
        hi=facts.hi if facts is not None else 0,
        landed_ts=last.hi if last is not None else 0,
        promised_ts=_promised_ts(settings, facts, whole_from_ts),
        whole_from_ts=whole_from_ts,
        tables=tables,
        unknown=_unknown_tables(view),
        holes=(*contents.holes, *_gap_before_landed(archive, relay, facts)),
        faults=view.faults,
        snapshots=tuple(_snapshot_json(snapshot) for snapshot in snapshots),
        held_by=pinned_by(facts, keep, now) if facts is not None else "",
        holds=living,
        spaces=spaces,
        disks=_disks(relay, archive, spaces),
        drill=_last_drill(jobs),
        failures=tuple(failure for failure in relay.failures.list() if failure.what in _TASKS),
        keep={"relay": settings.relay.keep}
        | {n: getattr(settings.archive, n) for n in _RETENTION_SETTINGS},
        restorable=restorable,
    )


def _whole_from(restorable: Sequence[PromisedRange], facts: ArchiveInventory | None) -> int:
    """Return since when every table can be restored through the archive's end, 0 if not now."""
    if facts is None or not restorable or restorable[-1].until_ts < facts.hi:
        return 0
    return restorable[-1].from_ts


def _promised_ts(settings: Settings, facts: ArchiveInventory | None, whole_from_ts: int) -> int:
    """Return since when every table can be restored and is kept, 0 if not all can now."""
    if facts is None or not whole_from_ts:
        return 0
    kept_from_ts = recovery_window_start(facts, policy_of(settings), tso.wall_clock())
    return max(whole_from_ts, kept_from_ts)


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


def _unknown_tables(view: ArchiveView) -> tuple[UnknownTable, ...]:
    """Return what a restore of all tables lacks now, from the best start that there is."""
    if view.promise is None or view.facts is None:
        return ()
    start, lacking = view.promise.lacking_at(view.facts.hi)
    found = []
    for table_id, name in sorted(lacking.items(), key=lambda item: item[1]):
        changes = view.change_count(table_id)
        found.append(UnknownTable(table_id, name, changes, _why_unknown(view, start, table_id)))
    return tuple(found)


def _why_unknown(view: ArchiveView, start: ReadStart | None, table_id: int) -> str:
    hi = view.facts.hi if view.facts is not None else 0
    holders = [one for one in view.snapshots if table_id in one.snapshot.tables]
    if any(one.ts <= hi for one in holders):
        latest = f"the snapshot {start.id}" if start is not None and start.id else "the latest one"
        return f"{latest} doesn't hold its rows, only older ones do: restore it with --table"
    if holders:
        first = min(holders, key=lambda one: one.ts)
        return (
            f"the snapshot {first.id} holds its rows as of {tso.time_text(first.ts)}, which isn't"
            " archived yet"
        )
    return "no snapshot holds its rows"


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

"""From when to when one can restore, table by table; what it takes, and for how long there is room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from etl.retain.contents import Contents, Hole, read_contents
from etl.retain.facts import facts_of
from etl.retain.known import KnownBase, KnownDay, changes_of
from etl.retain.needs import Facts, held_by, promised_from
from etl.retain.ranges import TableRange, table_ranges
from etl.retain.run import keep_of
from etl.retain.space import Space, archive_space, bases_space, full_in_days, relay_space
from etl.retain.summaries import Summaries, readable
from etl.retain.tasks import RETAIN
from etl.settings import Settings
from relay import Failure, RelayLog
from relay.archive import Archive, Hold, Holds, living_holds
from relay.jobs import Jobs
from relay.storage import LocalStorage
from upstream import tso
from upstream.table_name import full_name

__all__ = ["ArchiveStatus", "Disk", "UnknownTable", "archive_status"]


@dataclass(frozen=True, slots=True)
class UnknownTable:
    """Rows of a table are archived, and no base says what was there before: it can't be restored at any moment yet."""

    table_id: int
    name: str
    changes: int


@dataclass(frozen=True, slots=True)
class Disk:
    """Where `what` lies; full in so many days at today's rate, None: never."""

    what: tuple[str, ...]
    free_bytes: int
    total_bytes: int
    full_in_days: float | None


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """What can be restored. Moments are TSO, 0 where there is none. `whole_from_ts`: from here on every table that is
    known can be restored, through `landed_ts`; `promised_ts`: from here on that stays so. `held_by` says what keeps the
    oldest part of the archive, `faults` what can't be read, `failures` why tasks of the DAG `archive` have stopped.
    """

    url: str
    lo: int
    hi: int
    landed_ts: int
    promised_ts: int
    whole_from_ts: int
    tables: tuple[TableRange, ...]
    unknown: tuple[UnknownTable, ...]
    holes: tuple[Hole, ...]
    faults: tuple[str, ...]
    bases: tuple[dict[str, Any], ...]
    held_by: str
    holds: tuple[Hold, ...]
    spaces: dict[str, Space]
    disks: tuple[Disk, ...]
    drill: dict[str, Any] | None
    failures: tuple[Failure, ...]
    keep: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def archive_status(settings: Settings) -> ArchiveStatus:
    """Look at everything but the rows. Raises RelayCorruptError for the relay log's own records, OSError."""
    relay, archive = settings.open_relay(), Archive.open(settings.archive_url)
    known = Summaries(archive)
    contents = read_contents(archive, known.day)
    bases, faults = readable(known.base, archive)
    snapshots = [base.snapshot for base in bases]
    facts = facts_of(archive, contents, snapshots, Holds(archive.storage).floor().before_ts)
    jobs = Jobs.of(relay)
    end = contents.volumes[-1].hi if contents.volumes else 0
    living = tuple(living_holds(archive, jobs.is_over, end).values())
    last = relay.last()
    spaces = _spaces(settings, relay, contents, bases)
    tables = tuple(table_ranges(facts)) if facts is not None else ()
    keep, now = keep_of(settings), tso.wall_clock()
    return ArchiveStatus(
        url=archive.url,
        lo=facts.lo if facts is not None else 0,
        hi=facts.hi if facts is not None else 0,
        landed_ts=last.hi if last is not None else 0,
        promised_ts=promised_from(facts, keep, now) if facts is not None else 0,
        whole_from_ts=_whole_from(facts, tables),
        tables=tables,
        unknown=_unknown(archive, facts, contents),
        holes=(*contents.holes, *_hole_before_landed(archive, relay, facts)),
        faults=tuple(faults),
        bases=tuple(_told(base) for base in bases),
        held_by=held_by(facts, keep, now) if facts is not None else "",
        holds=living,
        spaces=spaces,
        disks=_disks(relay, archive, spaces),
        drill=_last_drill(jobs),
        failures=tuple(failure for failure in relay.failures.list() if failure.what in _TASKS),
        keep={"relay": settings.relay.keep} | {n: getattr(settings.archive, n) for n in _KEPT},
    )


_TASKS = ("archive", "compact", RETAIN)
_KEPT = ("keep", "bases_every", "bases_keep", "drills_every")


def _whole_from(facts: Facts | None, tables: Sequence[TableRange]) -> int:
    """From where on every table that is there now, or was dropped since, can be restored, 0 if none can."""
    if facts is None or not tables:
        return 0
    with_base = [table.from_ts for table in tables if table.base]
    return max(with_base, default=facts.lo)


def _told(base: KnownBase) -> dict[str, Any]:
    return {
        "id": base.id, "ts": base.ts, "made_ms": base.made_ms, "made_from": base.made_from, "tables": len(base.tables),
        "rows": base.rows, "bytes": base.bytes, "refers_to": list(base.refers_to),
    }  # fmt: skip


def _unknown(archive: Archive, facts: Facts | None, contents: Contents) -> tuple[UnknownTable, ...]:
    """Tables with changes of which it isn't known what they held before."""
    if facts is None:
        return ()
    known = {turn.table_id for turn in facts.turns if turn.begins or turn.takes}
    known |= {table_id for base in facts.bases for table_id in base.tables}
    after = min((volume.lo for volume in contents.unbroken), default=0)
    found: dict[int, int] = {}
    where: dict[int, str] = {}
    for day in contents.days:
        if day.volumes[-1].lo < after:
            continue
        for table_id, count in _changes(archive, day, after).items():
            if table_id not in known:
                found[table_id] = found.get(table_id, 0) + count
                where[table_id] = day.day
    names = _names(archive, where)
    return tuple(UnknownTable(i, names.get(i, f"table {i}"), count) for i, count in found.items())


def _changes(archive: Archive, day: KnownDay, after: int) -> Mapping[int, int]:
    """A day's, behind the moment at which one of its volumes begins."""
    if day.volumes[0].lo >= after:
        return day.changes
    return changes_of(volume for volume in archive.catalogue.load(day.day).volumes if volume.lo >= after)


def _names(archive: Archive, where: Mapping[int, str]) -> dict[int, str]:
    """The names of tables that were changed on some day, by id."""
    found: dict[int, str] = {}
    log = archive.log
    for day in sorted(set(where.values()), reverse=True):
        left = {table_id for table_id, last in where.items() if last == day}
        for volume in reversed(archive.catalogue.load(day).volumes):
            if left & volume.tables.keys():
                for window in log.windows(volume.lo, volume.hi):
                    for table_id in [i for i in left if window.tables.get(str(i))]:
                        table = window.tables[str(table_id)]
                        found[table_id] = full_name(table["schema_name"], table["name"])
                        left.discard(table_id)
            if not left:
                break
    return found


def _hole_before_landed(archive: Archive, relay: RelayLog, facts: Facts | None) -> list[Hole]:
    first = relay.first()
    if facts is None or first is None or first.lo <= facts.hi:
        return []
    why = f"{archive.url} ends there, and {relay.url} has these windows no longer"
    return [Hole(facts.hi, first.lo, why)]


def _spaces(settings: Settings, relay: RelayLog, contents: Contents, bases: Sequence[KnownBase]) -> dict[str, Space]:
    keep_ms = settings.archive.keep_ms
    return {
        "relay": relay_space(relay, settings.relay.keep_ms),
        "log": archive_space(contents.volumes, keep_ms, lake=False),
        "lake": archive_space(contents.volumes, keep_ms, lake=True),
        "bases": bases_space(bases, keep_ms),
    }


def _disks(relay: RelayLog, archive: Archive, spaces: dict[str, Space]) -> tuple[Disk, ...]:
    """The file systems they lie on; an object store has no end."""
    places: dict[int, tuple[list[str], int, int]] = {}
    for storage, names in ((relay.storage, ["relay"]), (archive.storage, ["log", "lake", "bases"])):
        if isinstance(storage, LocalStorage) and (found := storage.disk()) is not None:
            device, free, total = found
            places.setdefault(device, ([], free, total))[0].extend(names)
    return tuple(
        Disk(tuple(names), free, total, full_in_days(free, (spaces[name].growth for name in names)))
        for names, free, total in places.values()
    )


def _last_drill(jobs: Jobs) -> dict[str, Any] | None:
    drills = [job for job in jobs.list() if job.spec.kind == "drill"]
    return drills[-1].status().to_json() if drills else None

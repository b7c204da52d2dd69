"""Print `sluice archive status`, for readers who see it for the first time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sluice.etl.display_units import counted, format_duration, format_size
from sluice.tidb import tso

if TYPE_CHECKING:
    from sluice.etl.history.retain import ArchiveStatus

_MAX_SHOWN = 30
_PRODUCTS = {"relay": "relay log", "log": "archive", "lake": "lake", "snapshots": "snapshots"}


def lines(status: ArchiveStatus, *, every_table: bool) -> Iterator[str]:
    """Return the answer's lines, the most wanted first."""
    yield from _range(status)
    yield from (f"HOLE        {_between(hole.lo, hole.hi)}: {hole.why}" for hole in status.holes)
    yield from (f"DAMAGED     {fault}" for fault in status.faults)
    for failure in status.failures:
        when = _moment(tso.compose(failure.made_ms))
        yield f"STOPPED     {failure.what}, {when}: {failure.message}"
        yield f"hint        {failure.hint}"
    yield from _tables(status, every_table=every_table)
    yield from _snapshots(status)
    yield from _space(status)
    yield from _pin_lines(status)
    yield from _drill(status)


def _range(status: ArchiveStatus) -> Iterator[str]:
    yield f"archive     {status.url}"
    if not status.hi:
        yield (
            "restorable  nothing: the archive is empty; the DAG `archive` or `sluice archive run`"
            " fills it"
        )
        return
    for one in status.restorable:
        yield (
            f"restorable  every moment from {_moment(one.from_ts)} to"
            f" {_moment(one.until_ts)}"
            f" ({format_duration(tso.ms_between(one.from_ts, one.until_ts) / 1000)})"
        )
    if status.unknown:
        yield (
            f"NOT NOW     {counted(len(status.unknown), 'table')} can't be restored as of"
            f" {_moment(status.hi)}, so a restore of all is refused; `sluice snapshot make` makes a"
            " snapshot"
        )
    elif not status.whole_from_ts:
        yield "restorable  nothing now: there is no table"
    late = max(tso.ms_between(status.hi, status.landed_ts) / 1000, 0)
    yield (
        f"            archived through {_moment(status.hi)}, {format_duration(late)} behind what is"
        " landed"
    )
    if status.promised_ts > status.whole_from_ts:
        yield f"            what is before {_moment(status.promised_ts)} may go at any time"


def _tables(status: ArchiveStatus, *, every_table: bool) -> Iterator[str]:
    apart = [table for table in status.tables if every_table or _is_special(status, table)]
    since = "as above" if status.whole_from_ts else "for some moments"
    if not every_table and len(status.tables) > len(apart):
        yield f"tables      {len(status.tables) - len(apart):,} {since}; --tables lists them"
    for table in apart[: None if every_table else _MAX_SHOWN]:
        since = f"since the snapshot {table.snapshot}" if table.snapshot else "since it was created"
        until = (
            f", until it was dropped at {_moment(table.until_ts)}"
            if table.until_ts is not None
            else ""
        )
        yield f"  {table.name:<30} from {_moment(table.from_ts)}, {since}{until}"
    for unknown in status.unknown[: None if every_table else _MAX_SHOWN]:
        changes = counted(unknown.changes, "change")
        yield f"  {unknown.name:<30} not now: {unknown.why}; {changes} archived"
    if not every_table and len(status.unknown) > _MAX_SHOWN:
        yield f"  and {len(status.unknown) - _MAX_SHOWN:,} more; --tables lists them"


def _is_special(status: ArchiveStatus, table: Any) -> bool:
    return table.until_ts is not None or table.from_ts > status.whole_from_ts


def _snapshots(status: ArchiveStatus) -> Iterator[str]:
    for snapshot in status.snapshots:
        yield (
            f"snapshot        {snapshot['id']}: {counted(snapshot['tables'], 'table')},"
            f" {counted(snapshot['rows'], 'row')}, {format_size(snapshot['bytes'])}, as of"
            f" {_moment(snapshot['ts'])}, from {snapshot['made_from']}"
        )


def _space(status: ArchiveStatus) -> Iterator[str]:
    for name, space in status.spaces.items():
        grows = (
            f", {format_size(space.growth.bytes_a_day)} a day" if space.growth.bytes_a_day else ""
        )
        if grows and space.growth.days is not None:
            grows += (
                " come and go"
                if not space.growth.days
                else f" for {space.growth.days:,.1f} days more"
            )
        yield f"{_PRODUCTS[name]:<11} {format_size(space.bytes)}{grows}"
    for disk in status.disks:
        full = (
            "never full at today's rate"
            if disk.full_in_days is None
            else f"full in {_days(disk.full_in_days)} at today's rate"
        )
        what = ", ".join(_PRODUCTS[name] for name in disk.what)
        yield (
            f"disk        {format_size(disk.free_bytes)} of {format_size(disk.total_bytes)} free,"
            f" {full} ({what})"
        )


def _pin_lines(status: ArchiveStatus) -> Iterator[str]:
    if status.held_by and status.keep["keep"]:
        yield f"held by     the oldest part of the archive stays because of {status.held_by}"
    for hold in status.holds:
        yield (
            f"read by     {hold.what}: what was committed since {_moment(hold.from_ts)} stays until"
            " it is done"
        )


def _drill(status: ArchiveStatus) -> Iterator[str]:
    if status.drill is None:
        yield (
            "drill       restoring was never tried; `sluice drill` tries it, the DAG"
            " `restore_drill` by itself"
        )
        return
    result = status.drill["result"] or {}
    when = tso.time_text(tso.compose(status.drill["since_ms"]))
    if status.drill["state"] == "done":
        yield (
            f"drill       {when}: {counted(result.get('tables', 0), 'table')} as of"
            f" {_moment(int(result.get('ts', 0)))}, restored and right in"
            f" {format_duration(float(result.get('seconds', 0.0)))}"
        )
    else:
        message = f": {status.drill['message']}" if status.drill["message"] else ""
        yield f"drill       {when}: {status.drill['state'].upper()}{message}"
        if status.drill["hint"]:
            yield f"hint        {status.drill['hint']}"


def _days(days: float) -> str:
    return format_duration(days * 86_400) if days < 2 else f"{days:,.0f} days"


def _between(lo: int, hi: int) -> str:
    return f"{_moment(lo)} to {_moment(hi)}"


def _moment(ts: int) -> str:
    return tso.time_text(ts) if ts else "the beginning"

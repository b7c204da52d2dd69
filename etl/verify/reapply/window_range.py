"""Inspect what the relay log holds between two timestamps: its size, tables, DDL and gaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.etl.changes.planning import WindowPayload
from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaReplay
from sluice.etl.changes.rules import Filter, is_internal_table
from sluice.relay import RelayError, RelayLog, WindowRecord
from sluice.tidb import tso
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Table
from sluice.tidb.table_name import fits, suggestion


@dataclass(slots=True)
class ReplayWindows:
    """Windows that hold commits of the range.

    `transactions`, `changes` and `bytes` (of parts) count those windows in which a wanted table
    changes, as wholes: at most so much is to be done.
    """

    cluster_id: int = 0
    windows: int = 0
    transactions: int = 0
    changes: int = 0
    bytes: int = 0
    tables: dict[str, Table] = field(default_factory=dict)
    """Wanted tables that change, by ``schema.table``, as they were when the first change of the
    range came.
    """
    begun: dict[int, Table] = field(default_factory=dict)
    """Tables that were there before the range, by id."""
    ddls: list[DdlJob] = field(default_factory=list)
    """DDL about wanted tables or databases."""
    problems: list[str] = field(default_factory=list)


def inspect_range(relay: RelayLog, since: int, until: int, filters: Filter) -> ReplayWindows:
    """Inspect the windows in (since, until]. What prevents applying them is in `problems`."""
    found = ReplayWindows()
    first, last = relay.first(), relay.last()
    if first is None or last is None:
        found.problems.append(f"the relay log {relay.url} is empty")
        return found
    found.cluster_id = first.cluster_id
    there = (
        f"the relay log {relay.url} holds what was committed after {tso.text(first.lo)} through"
        f" {tso.text(last.hi)}"
    )
    if since >= until:
        found.problems.append(f"--since {tso.text(since)} is not before --until {tso.text(until)}")
    elif since < first.lo:
        found.problems.append(
            f"{there}: what came before was removed ([relay] keep), or never landed; not --since"
            f" {since}"
        )
    elif until > last.hi:
        found.problems.append(f"{there}: --until {tso.text(until)} is not landed")
    else:
        _gather(found, relay, (since, until), filters, first.lo)
    return found


def _gather(
    found: ReplayWindows, relay: RelayLog, ends: tuple[int, int], filters: Filter, oldest: int
) -> None:
    since, until = ends
    replay = SchemaReplay(since)
    try:
        for window in relay.windows(since, until):
            found.windows += 1
            if window.tables or window.ddls:
                _add(found, window, replay, until, filters)
            for commit_ts, began_ts in (
                WindowPayload.from_window(window, since, until).ddl_started_before().items()
            ):
                if began_ts < oldest:
                    found.problems.append(
                        f"the DDL at commit_ts {commit_ts} began at {tso.text(began_ts)}, before"
                        " the oldest window that is there: which rows it keeps is unknown."
                        " Begin after it"
                    )
    except RelayError as error:
        found.problems.append(str(error))
    found.begun = {i: table for i, table in replay.unknown.items() if _wants(filters, table)}


def _add(
    found: ReplayWindows, window: WindowRecord, replay: SchemaReplay, until: int, filters: Filter
) -> None:
    schema = RecordedSchema.from_window(window)
    replay.enter(schema)
    ids = set(schema.tables).union(*(ddl.effect.tables for ddl in schema.ddls))
    tables = [replay.tables[i] for i in ids if i in replay.tables]
    count = len(found.ddls)
    for ddl in replay.advance(schema.ddls, until):
        sides = [t for t in (*ddl.effect.tables.values(), *ddl.before.values()) if t is not None]
        if any(filters.wants_schema(s.name) for s in ddl.effect.schemas.values() if s) or any(
            _wants(filters, table) for table in sides
        ):
            found.ddls.append(ddl)
            tables += sides
    wanted = [table for table in tables if _wants(filters, table)]
    for table in wanted:
        found.tables.setdefault(table.full_name, table)
    if wanted or len(found.ddls) > count:
        found.transactions += window.transactions
        found.changes += window.changes
        found.bytes += sum(part.bytes for part in window.parts)


def _wants(filters: Filter, table: Table) -> bool:
    return (
        table.is_base_table
        and not is_internal_table(table.id)
        and filters.wants_table(table.schema_name, table.name)
    )


def unmatched(globs: Iterable[str], found: ReplayWindows) -> list[str]:
    """Return a problem for each glob that no table of the range fits."""
    return [
        f"--table {glob}: no such table that the rules want changed in this range"
        f"{suggestion(glob, found.tables)}"
        for glob in globs
        if not any(fits(name, glob) for name in found.tables)
    ]

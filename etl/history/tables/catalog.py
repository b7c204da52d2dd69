"""List all tables of a pipeline under their names upstream.

With each what was counted, what was verified, and what the downstream has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sluice.errors import SluiceError, ours
from sluice.etl.changes.rules import RouteError, Target
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.history.tables.downstream_tables import DownstreamTables, DownstreamTableSize
from sluice.etl.settings import Downstream, Settings
from sluice.relay.measures import CounterStore, TableCount
from sluice.relay.verification_log import TableVerified, Verifications
from sluice.tidb import tso
from sluice.tidb.folded import folded
from sluice.tidb.table_name import TableName, full_name, names_table

__all__ = ["SORTS", "TableCatalog", "TableInfo", "TableSelection", "read_table_catalog"]


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table in the list; `target`: its name downstream.

    `replica` None: it doesn't exist, or that is unknown. `problem`: why it goes nowhere.
    """

    name: str
    target: str
    count: TableCount = field(default_factory=TableCount)
    verified: TableVerified | None = None
    replica: DownstreamTableSize | None = None
    problem: str = ""

    @property
    def changes(self) -> int:
        """Return the number of changes applied, of all kinds."""
        return self.count.inserts + self.count.updates + self.count.deletes

    @property
    def changes_of_day(self) -> int:
        """Return the number of changes applied in the last 24 hours."""
        return sum(self.count.last_hours(time.time_ns() // 1_000_000))

    def changed_ms(self, ahead_ms: float) -> int:
        """Return when its last change was committed, by this machine's clock; 0 without one.

        `ahead_ms`: TiDB's clock minus this machine's.
        """
        ts = self.count.last_commit_ts
        return tso.physical_ms(ts) - round(ahead_ms) if ts else 0

    @property
    def differs(self) -> bool:
        """Return whether its last verification has found something."""
        return self.verified is not None and not self.verified.equal


SORTS: Mapping[str, Callable[[TableInfo], tuple[object, ...]]] = {
    "name": lambda one: (one.name.lower(), one.name),
    "rows": lambda one: (one.replica.rows or 0 if one.replica else -1,),
    "bytes": lambda one: (one.replica.bytes or 0 if one.replica else -1,),
    "changes": lambda one: (one.changes,),
    "recent": lambda one: (one.changes_of_day,),
    "changed": lambda one: (one.count.last_commit_ts,),
    "verified": lambda one: (one.verified.at_ms if one.verified else 0,),
    "differences": lambda one: (one.verified.differences if one.verified else -1, one.differs),
}
"""The sort orders of a list."""


_KIND_FILTERS: Mapping[str, Callable[[TableInfo], bool]] = {
    "differs": lambda one: one.differs,
    "unverified": lambda one: one.verified is None,
}


@dataclass(frozen=True, slots=True)
class TableSelection:
    """A selection of tables by name, kind, order and page.

    Names hold every word of `words`, of `only` a kind: "" (all), differs, unverified. `sort`: of
    SORTS, the largest first if `down`; `offset`, `limit`: the page.
    """

    words: str = ""
    only: str = ""
    sort: str = "name"
    down: bool = False
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True)
class TableCatalog:
    """A table catalog; `errors`: which source doesn't answer, and why."""

    tables: tuple[TableInfo, ...]
    errors: Mapping[str, str] = field(default_factory=dict)

    def named(self, name: str) -> TableInfo | None:
        """Return the table of that full name."""
        return next((table for table in self.tables if table.name == name), None)

    def select(self, wanted: TableSelection) -> tuple[list[TableInfo], int]:
        """Return a page of the selected tables, and how many are selected."""
        words = wanted.words.lower().split()
        found = [one for one in self.tables if all(word in one.name.lower() for word in words)]
        if wanted.only:
            found = [one for one in found if _KIND_FILTERS[wanted.only](one)]
        found.sort(key=SORTS["name"])
        found.sort(key=SORTS[wanted.sort], reverse=wanted.down)
        return found[wanted.offset : wanted.offset + wanted.limit], len(found)


def read_table_catalog(settings: Settings, replica: DownstreamTables) -> TableCatalog:
    """Read the catalog. Failures of a source are in `TableCatalog.errors`, not raised."""
    errors = {"downstream": replica.problem} if replica.problem else {}
    relay = settings.open_relay()
    counts = _answer_or_note(
        "measures", CounterStore(relay, downstream_name(settings.target)).tables, errors
    )
    verified = _answer_or_note("verified", Verifications(relay).last, errors)
    # OTHER_TABLES of the counters names none
    names = sorted(filter(names_table, {*counts, *verified}))
    found = [
        _table_info(settings, name, replica, counts.get(name), verified.get(name)) for name in names
    ]
    return TableCatalog((*found, *_downstream_alone(settings, replica, found)), errors)


T = TypeVar("T")


def _answer_or_note(
    source: str, question: Callable[[], dict[str, T]], errors: dict[str, str]
) -> dict[str, T]:
    try:
        return question()
    except (SluiceError, OSError) as error:
        errors[source] = str(ours(error))
        return {}


def _table_info(
    settings: Settings,
    name: str,
    replica: DownstreamTables,
    count: TableCount | None,
    verified: TableVerified | None,
) -> TableInfo:
    schema, table = TableName.parse(name)
    counted = count or TableCount()
    try:
        goal = (
            settings.routes.target(schema, table)
            if settings.routes.rules
            else Target(schema, table)
        )
    except RouteError as error:
        return TableInfo(name, "", counted, verified, problem=str(error))
    there = replica.tables.get((folded(goal.schema), folded(goal.table)))
    return TableInfo(name, full_name(goal.schema, goal.table), counted, verified, there)


def _downstream_alone(
    settings: Settings, replica: DownstreamTables, known: Iterable[TableInfo]
) -> Iterable[TableInfo]:
    """Yield downstream tables that may be this pipeline's, and were not counted or verified yet.

    They keep their names, so a table has the same name upstream.
    """
    if not isinstance(settings.target, Downstream):
        return
    taken = {(one.replica.schema, one.replica.name) for one in known if one.replica is not None}
    for table in replica.tables.values():
        place = (table.schema, table.name)
        if place in taken or not settings.filters.wants_table(*place):
            continue
        name = full_name(table.schema, table.name)
        yield TableInfo(name, name, replica=table)

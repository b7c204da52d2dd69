"""Resolve where tables go by filters and routes, and cache it.

Batch after batch has rows of the same tables, of which there may be thousands.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from sluice.etl.changes.rules import (
    ColumnRuleError,
    Filter,
    RouteError,
    Routes,
    RowRuleError,
    RowSelection,
    with_source_column,
    with_stored_mark,
)
from sluice.tidb.schema import Table

_MAX_CACHED_RULES = 4
_MAX_CACHED_TABLES = 100_000
"""Tables cached for the same rules."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of a table's changes."""

    table: Table
    """The table under its downstream name, as column rules shape it."""
    name: str
    """The full upstream name."""
    source: str = ""
    """The upstream name, if rows are mixed with those of other tables downstream; else ""."""
    is_wanted: bool = True
    """False if the changes go nowhere."""
    refusal: str = ""
    """Why the changes can't go there."""
    ignored_kinds: frozenset[int] = frozenset()
    """Kinds of row changes that are excluded."""
    rows: RowSelection | None = None
    """The rows that go there; None for all."""
    may_keep_rows: bool = False
    """True if its rows may stay downstream when a statement removes them upstream."""


class Destinations:
    """The destinations of tables by fixed filters and routes."""

    def __init__(self, filters: Filter, routes: Routes) -> None:
        self._filters, self._routes = filters, routes
        self._known: dict[int, tuple[Table, Destination]] = {}

    def for_table(self, table: Table) -> Destination:
        known = self._known.get(table.id)
        if known is not None and known[0] is table:
            return known[1]
        if known is None and len(self._known) >= _MAX_CACHED_TABLES:
            self._known.clear()
        found = self._resolve(table)
        self._known[table.id] = table, found
        return found

    def _resolve(self, table: Table) -> Destination:
        names = table.schema_name, table.name
        if not table.is_base_table or not self._filters.wants_table(*names):
            return Destination(table, table.full_name, is_wanted=False)
        try:
            target = self._routes.target(*names)
            rows = self._filters.row_selection(table)
            narrowed = self._filters.narrowed(table)
            shaped = with_source_column(narrowed, target)
        except (ColumnRuleError, RouteError, RowRuleError) as error:
            return Destination(table, table.full_name, refusal=str(error))
        if target.is_merged and narrowed is not table:
            return Destination(table, table.full_name, refusal=self._merged(table, target.sources))
        routed = (
            shaped
            if target.route is None
            else replace(shaped, schema_name=target.schema, name=target.table)
        )
        return Destination(
            with_stored_mark(routed),
            table.full_name,
            table.full_name if target.mixes_rows else "",
            rows=rows,
            ignored_kinds=self._filters.ignored_row_kinds(*names),
            may_keep_rows=self._filters.may_keep_rows(*names),
        )

    def _merged(self, table: Table, sources: str) -> str:
        rule = self._filters.column_rules(table.schema_name, table.name)[0]
        return (
            f"{rule.effect} of {table.full_name}, which is merged with other tables ({sources}):"
            " the columns of a merged table are those of all its sources"
        )


destinations = functools.lru_cache(maxsize=_MAX_CACHED_RULES)(Destinations)
"""Return the cached destinations of the same rules."""

"""Find upstream tables that are one table downstream, and whether their rows can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sluice.etl.changes.rules import RouteError
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable, page_key
from sluice.etl.settings import Settings
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_name import full_name

__all__ = [
    "MergedTable",
    "identity_columns",
    "merged_into",
    "merged_tables",
    "renamed_as_first",
    "visible_columns",
]


@dataclass(frozen=True, slots=True)
class MergedTable:
    """One table, or several that are merged into `schema`.`name` downstream, by full name.

    The first stands for all.
    """

    tables: tuple[Table, ...]
    schema: str
    name: str

    @property
    def place(self) -> DownstreamTable:
        """Return the merged table downstream, with the definition of the first."""
        return DownstreamTable(self.tables[0], self.schema, self.name)

    def unlike(self) -> str:
        """Return why they can't be compared as one, "" if they can."""
        first = self.tables[0]
        shape = _comparable_shape(first)
        for table in self.tables[1:]:
            if _comparable_shape(table) != shape:
                return (
                    f"{first.full_name} and {table.full_name} are merged into"
                    f" {full_name(self.schema, self.name)}, and have other columns or another key:"
                    " their rows can't be compared as those of one table"
                )
        return ""


def merged_tables(settings: Settings, tables: Iterable[Table]) -> list[MergedTable]:
    """Return the groups of `tables` that routes merge into one table each."""
    found: dict[tuple[str, str], list[Table]] = {}
    for table in tables:
        target = merged_into(settings, table.schema_name, table.name)
        if target is not None:
            found.setdefault(target, []).append(table)
    return [
        MergedTable(tuple(sorted(members, key=lambda table: table.full_name)), *target)
        for target, members in sorted(found.items())
    ]


def merged_into(settings: Settings, schema: str, name: str) -> tuple[str, str] | None:
    """Return schema and table downstream that hold the merged rows of several tables.

    All changes of this one are among them. None if there is no such table, or a column tells the
    rows of each apart.
    """
    filters = settings.filters
    if not filters.wants_table(schema, name) or filters.leaves_changes_out(schema, name):
        return None
    if filters.column_rules(schema, name):
        return None  # refused wherever they are written
    try:
        target = settings.routes.target(schema, name)
    except RouteError:
        return None
    return (target.schema, target.table) if target.mixes_rows else None


def renamed_as_first(first: Table, other: Table) -> Table:
    """Return the other table with the first one's names and order of writable columns.

    Both have the same shape.
    """
    own = {folded(column.name): column for column in other.writable_columns}
    columns = (
        replace(own[folded(column.name)], name=column.name) for column in first.writable_columns
    )
    return replace(
        other,
        columns=tuple(replace(column, offset=number) for number, column in enumerate(columns)),
    )


def visible_columns(table: Table) -> list[Column]:
    """Return those that a SELECT * shows."""
    return [column for column in table.columns if column.public and not column.hidden]


def identity_columns(table: Table) -> tuple[str, ...]:
    """Return the columns of the table's first key without NULL, () if there is none."""
    known = {column.name: column for column in table.columns}
    return next(
        (key for key in table.unique_keys() if all(known[name].not_null for name in key)), ()
    )


def _comparable_shape(table: Table) -> tuple[Any, ...]:
    """Return the shape that tables must share for their rows to be compared as one table's."""
    columns = {
        folded(column.name): (
            column.kind,
            arrow_type(column),
            column.charset,
            column.not_null,
            column.elems,
        )
        for column in visible_columns(table)
    }
    key, rows = (
        (folded(column.name) for column in page_key(table)),
        (folded(name) for name in identity_columns(table)),
    )
    return columns, tuple(key), tuple(rows)

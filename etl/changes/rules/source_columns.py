"""Keep rows of merged tables apart by a column that names their source: `source-column`.

The column is in front of each unique key of the merged table. So sources may have rows with the
same key, none of their rows meet, and the rows of one can be found, copied, compared and removed.

No row of the upstream holds the column. For decoding it is one that was added behind all rows, with
the source's name as the default that they have. For copies and comparisons the upstream computes
it.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.etl.changes.formats.sql_text import literal, quote_name
from sluice.etl.changes.rules.routes import RouteError, Target
from sluice.tidb import column_types
from sluice.tidb.folded import folded
from sluice.tidb.schema import WHOLE_COLUMN, Column, Index, Table

__all__ = ["source_condition", "with_source_column", "without_source_column"]

_ID = -2_000_000
"""TiDB's ids are positive, and those of columns that column rules add are other negative ones."""
_MAX_CHARS = 133
"""Two names of 64 characters, the point, and backquotes around both."""


def source_condition(column: Column, name: str = "") -> str:
    """Return the SQL condition of a table's own rows; `name`: of the column, with its table."""
    return f"{name or quote_name(column.name)} = {literal(column.origin_default)}"


def with_source_column(table: Table, target: Target) -> Table:
    """Return the table, under its upstream name, with the column that its route adds; or as it is.

    Raises RouteError for a table that can't have it.
    """
    name = target.source_column
    if not name or not table.is_base_table or table.source_column is not None:
        return table
    if why := _why_not(table, name):
        rule = target.route.text if target.route else ""
        raise RouteError(
            f"{rule} keeps rows of {table.full_name} apart by column {name}: {why}",
            hint="change `source-column` of the [[route]], or leave the table out by [filter]"
            " ignore-table",
        )
    column = Column(
        _ID,
        name,
        len(table.columns),
        column_types.VARCHAR,
        column_types.FLAG_NOT_NULL,
        flen=_MAX_CHARS,
        charset="utf8mb4",
        collate="utf8mb4_bin",
        origin_default=table.full_name,
        computed=literal(table.full_name),
        version=2,
        names_source=True,
    )
    return replace(
        table,
        columns=(*(_without_numbering(one) for one in table.columns), column),
        indexes=_keys_by_source(table, column),
        auto_increment=0,
    )


def without_source_column(table: Table) -> Table:
    """Return the table as its source has it: what `with_source_column` was given, or as it is."""
    column = table.source_column
    if column is None:
        return table
    return replace(
        table,
        columns=tuple(one for one in table.columns if one is not column),
        indexes=tuple(
            replace(index, columns=tuple(each for each in index.columns if each[0] != column.name))
            for index in table.indexes
            if index.id != _ID
        ),
    )


def _without_numbering(column: Column) -> Column:
    """Return the column without AUTO_INCREMENT, which has to be the first of a key."""
    return replace(column, flag=column.flag & ~column_types.FLAG_AUTO_INCREMENT)


def _keys_by_source(table: Table, column: Column) -> tuple[Index, ...]:
    """Return the indexes, each unique one with the column in front."""
    first = (column.name, column.offset, WHOLE_COLUMN)
    indexes = tuple(
        replace(index, columns=(first, *index.columns)) if index.unique or index.primary else index
        for index in table.indexes
    )
    handle = table.handle_column
    if handle is None or table.primary_index is not None:
        return indexes
    own = (handle.name, table.columns.index(handle), WHOLE_COLUMN)
    return (Index(_ID, "PRIMARY", (first, own), unique=True, primary=True), *indexes)


def _why_not(table: Table, name: str) -> str:
    names = (each for one in table.columns for each in (one.name, one.source_name))
    if folded(name) in map(folded, names):
        return "the table has a column of this name"
    if not table.primary_key:
        return "it has no primary key"
    if table.is_partitioned:
        return "it is partitioned"
    if table.foreign_keys:
        return "it has a foreign key"
    return ""

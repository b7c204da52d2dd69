"""Keep deleted rows downstream, marked with the time of their commit: `soft-delete`.

The rule adds a column, which is NULL while the row is upstream. For all that copies and compares
rows it is a column computed as NULL (`Filter.narrowed`), so none of that writes it. Changes see it
as a stored one (`with_stored_mark`), since a delete becomes an update of it
(`sluice.etl.changes.planning._soft_deletes`).

Unique keys beside the primary one are ordinary indexes downstream: rows that are gone upstream keep
their values, and living ones may have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sluice.etl.changes.conditions import ConditionError
from sluice.etl.changes.rules.column_rules import ColumnRule, ColumnRuleError
from sluice.tidb import column_types, tso
from sluice.tidb.folded import folded
from sluice.tidb.schema import WHOLE_COLUMN, Column, Table

__all__ = [
    "MILLISECOND_DIGITS",
    "commit_time",
    "why_rows_cannot_stay",
    "with_deletion_mark",
    "with_stored_mark",
]

_MARK_ID = -1_000_000
"""TiDB's ids are positive, and those of other added columns just below zero."""
MILLISECOND_DIGITS = 3
"""A commit timestamp has milliseconds."""


def commit_time(ts: int) -> str:
    """Return the time of a commit timestamp (TSO) in UTC, as a DATETIME(3) is written."""
    return tso.to_datetime(ts).strftime("%Y-%m-%d %H:%M:%S.%f")[:-MILLISECOND_DIGITS]


def with_deletion_mark(rules: tuple[ColumnRule, ...], table: Table) -> Table:
    """Return the table, as other column rules shape it, with the column that marks deleted rows.

    Raises ColumnRuleError for two names of it, for one that a column has, and for a table whose
    deleted rows can't be found again by its primary key.
    """
    asking = [rule for rule in rules if rule.soft_delete]
    if not asking or table.deletion_mark is not None:
        return table
    rule, name = asking[0], asking[0].soft_delete
    for other in asking[1:]:
        if folded(other.soft_delete) != folded(name):
            raise ColumnRuleError(
                f"{rule.text} and {other.text} mark deleted rows of {table.full_name} in different"
                " columns"
            )
    if why := why_rows_cannot_stay(table, (name,)):
        raise ColumnRuleError(
            f"{rule.text} marks deleted rows of {table.full_name} in column {name}: {why}"
        )
    mark = Column(
        _MARK_ID,
        name,
        len(table.columns),
        column_types.DATETIME,
        decimal=MILLISECOND_DIGITS,
        charset="binary",
        collate="binary",
        generated="NULL",
        computed="NULL",
        version=2,
        marks_deletes=True,
    )
    indexes = tuple(
        index if index.primary else replace(index, unique=False) for index in table.indexes
    )
    return replace(table, columns=(*table.columns, mark), indexes=indexes)


def with_stored_mark(table: Table) -> Table:
    """Return the table as changes are written: with the column that marks deleted rows, if any."""
    if table.deletion_mark is None:
        return table
    columns = tuple(
        replace(column, generated="", computed="") if column.marks_deletes else column
        for column in table.columns
    )
    return replace(table, columns=columns)


def why_rows_cannot_stay(table: Table, names: Sequence[str]) -> str:
    """Return why rows that are gone upstream can't stay downstream, "" if they can.

    `names`: of the columns that a rule adds for them.
    """
    there = {folded(each) for one in table.columns for each in (one.name, one.source_name)}
    if taken := [name for name in names if folded(name) in there]:
        what = "of this name" if len(names) == 1 else f"named {taken[0]}"
        return f"the table has a column {what}"
    if not table.primary_key:
        return "it has no primary key, by which a row that is gone would be found again"
    index = table.primary_index
    if index is not None and any(size != WHOLE_COLUMN for _, _, size in index.columns):
        return "its primary key holds a prefix of a column"
    if index is not None and index.is_global:
        return "its primary key is a global index, so a row is there twice while it changes place"
    columns = {column.name: column for column in table.stored_columns}
    for each in table.primary_key:
        if why := _why_no_key(columns.get(each)):
            return f"its primary key has column {each}, {why}"
    return ""


def _why_no_key(column: Column | None) -> str:
    """Return why keys can't be compared by a column as servers compare them."""
    from sluice.etl.changes.conditions.comparison_keys import column_keys  # with Arrow

    if column is None:
        return "which no row holds"
    if column.kind in ("float", "double"):
        return "a floating point number"
    try:
        column_keys(column)
    except ConditionError:
        how = f"of collation {column.collate}" if column.kind == "text" else f"a {column.kind}"
        return f"{how}, of which Sluice doesn't know what servers take for equal"
    return ""

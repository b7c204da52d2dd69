"""Keep every version of a row downstream, from one commit to the next: `history`.

The rule makes three columns behind all others: when a version began and ended, and the commit
timestamp (TSO) that made it. The primary key downstream is the upstream's and that timestamp, so
versions of one millisecond stay apart.

For all that copies and compares rows the table is the upstream's, and its rows are the versions
that are open (`Filter.narrowed`, `Table.history`). Only what defines the table downstream and what
writes versions has the three columns (`with_history_columns`).
"""

from __future__ import annotations

from dataclasses import replace

from sluice.etl.changes.rules.column_rules import ColumnRule, ColumnRuleError
from sluice.etl.changes.rules.soft_deletes import MILLISECOND_DIGITS, why_rows_cannot_stay
from sluice.tidb import column_types
from sluice.tidb.schema import WHOLE_COLUMN, Column, Index, Table

__all__ = ["history_columns", "with_history", "with_history_columns"]

_FIRST_COLUMN_ID = -1_000_003
"""TiDB's ids are positive, and those of other added columns are just below zero, or above this."""
_PRIMARY_ID, _OPEN_ID = -1_000_001, -1_000_002
_OPEN_INDEX = "sluice_open_versions"
"""Finds the open version of a key among thousands of past ones, and all open versions in order."""


def with_history(rules: tuple[ColumnRule, ...], table: Table) -> Table:
    """Return the table, as other column rules shape it, as one whose versions are kept.

    Raises ColumnRuleError for two names of a column, for a name that a column has, and for a table
    whose versions can't be found again by its primary key.
    """
    asking = [rule for rule in rules if rule.history]
    if not asking or table.history:
        return table
    rule, history = asking[0], asking[0].history
    for other in asking[1:]:
        if other.history != history:
            raise ColumnRuleError(
                f"{rule.text} and {other.text} keep versions of {table.full_name} by different"
                " columns"
            )
    if marking := next((each for each in rules if each.soft_delete), None):
        raise ColumnRuleError(
            f"{rule.text} keeps versions of {table.full_name}, and {marking.text} marks its deleted"
            " rows: a version that has ended is marked already"
        )
    if why := why_rows_cannot_stay(table, history.names):
        raise ColumnRuleError(f"{rule.text} keeps versions of {table.full_name}: {why}")
    return replace(table, history=history.names)


def history_columns(table: Table) -> tuple[Column, Column, Column]:
    """Return the columns of a table with versions: when each began and ended, and its commit."""
    since, until, commit_ts = table.history
    place = len(table.columns)

    def time(number: int, name: str, flag: int) -> Column:
        return Column(
            _FIRST_COLUMN_ID + number,
            name,
            place + number,
            column_types.DATETIME,
            flag,
            decimal=MILLISECOND_DIGITS,
            charset="binary",
            collate="binary",
            version=2,
        )

    return (
        time(0, since, column_types.FLAG_NOT_NULL),
        time(1, until, 0),
        Column(
            _FIRST_COLUMN_ID + 2,
            commit_ts,
            place + 2,
            column_types.BIGINT,
            column_types.FLAG_NOT_NULL,
            charset="binary",
            collate="binary",
            version=2,
        ),
    )


def with_history_columns(table: Table) -> Table:
    """Return the table as it is downstream: itself, unless its versions are kept.

    Versions repeat values of unique keys, so these are ordinary indexes. Their foreign keys would
    be about rows that are gone, and nothing counts AUTO_INCREMENT up.
    """
    if not table.history or any(column.id == _FIRST_COLUMN_ID for column in table.columns):
        return table
    added = _, until, commit_ts = history_columns(table)
    places = {column.name: column.offset for column in (*table.columns, *added)}
    key = tuple((name, places[name], WHOLE_COLUMN) for name in table.primary_key)
    primary = replace(
        table.primary_index or Index(_PRIMARY_ID, "PRIMARY", (), unique=True, primary=True),
        columns=(*key, (commit_ts.name, commit_ts.offset, WHOLE_COLUMN)),
    )
    opened = Index(_OPEN_ID, _OPEN_INDEX, ((until.name, until.offset, WHOLE_COLUMN), *key))
    others = (replace(one, unique=False) for one in table.indexes if not one.primary)
    columns = (
        replace(column, flag=column.flag & ~column_types.FLAG_AUTO_INCREMENT)
        for column in table.columns
    )
    return replace(
        table,
        columns=(*columns, *added),
        indexes=(primary, *others, opened),
        pk_is_handle=False,
        is_common_handle=True,
        auto_random_bits=0,
        auto_increment=0,
        foreign_keys=(),
    )

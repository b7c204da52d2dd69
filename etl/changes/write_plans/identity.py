"""Define what makes a row the same row, for all that finds or compares rows.

These are net effects, conflict detection, replays and the statements that find rows. TiDB's handle
identifies a row among changes: the clustered primary key, else the hidden row id. But partitions
have row ids of their own, EXCHANGE PARTITION brings equal ones into one table, and a binlog names
the table, not the partition: there a row is known by a key, and without one by all its values.
Rows that agree in every value are interchangeable, so how many of them come and go is all that
counts.
"""

from __future__ import annotations

from sluice.tidb.rows import ROWID_NAME
from sluice.tidb.schema import STATE_PUBLIC, WHOLE_COLUMN, Column, Table
from sluice.tidb.table_cache import TableCache


def identity(table: Table) -> tuple[str, ...]:
    """Return the columns of a change's images that identify its row.

    () if only all values together do.
    """
    return _identities(table)


def lookup_key_columns(table: Table) -> list[Column]:
    """Return the key by which rows are found downstream.

    It is the primary key, else a unique key without NULLs, else nothing. Of a partitioned table it
    must hold for each partition: a row that moves on comes before it goes, so a global key has it
    twice in between.
    """
    return [*_lookup_keys(table)]


def replace_safe_columns(table: Table) -> tuple[str, ...] | bool:
    """Return the columns that must be as they were for a row to be replaced in its place.

    True or False where that is known without looking.
    """
    return _replace_safe(table)


def _identity_of(table: Table) -> tuple[str, ...]:
    if table.handle_kind != "heap" or table.deletion_mark is not None:
        # a row that is marked as deleted gives its key to another one
        return table.source_key
    if table.is_partitioned:
        return tuple(column.name for column in lookup_key_columns(table))
    return (ROWID_NAME,)


def _lookup_key_of(table: Table) -> tuple[Column, ...]:
    by_name = {column.name: column for column in table.stored_columns}
    across = {
        tuple(name for name, _, _ in index.columns) for index in table.indexes if index.is_global
    }
    for key in table.unique_keys():
        if key not in across and all(
            name in by_name and (key == table.primary_key or by_name[name].not_null) for name in key
        ):
            return tuple(by_name[name] for name in key)
    return ()


def _replace_safe_of(table: Table) -> tuple[str, ...] | bool:
    if not lookup_key_columns(table):
        return False
    names = set(table.primary_key)
    for index in table.indexes:
        if (index.unique or index.primary) and index.state == STATE_PUBLIC:
            names.update(name for name, _, _ in index.columns)
    if not names <= {column.name for column in table.stored_columns}:
        return False  # a unique index on an expression: what it holds isn't in the rows
    keys = sorted(names)
    return (table.handle_kind != "heap" and keys == sorted(table.primary_key)) or tuple(keys)


_replace_safe = TableCache(_replace_safe_of)
_identities = TableCache(_identity_of)
_lookup_keys = TableCache(_lookup_key_of)


def conflict_keys(table: Table) -> list[tuple[str, ...]]:
    """Return the column names of everything unique downstream, and of what identifies rows.

    An empty tuple stands for a key that isn't in the rows.
    """
    stored = {column.name for column in table.stored_columns}
    keys = [identity(table)]
    for index in table.indexes:
        if (index.unique or index.primary) and index.state == STATE_PUBLIC:
            names = tuple(name for name, _, _ in index.columns)
            whole = all(length == WHOLE_COLUMN for _, _, length in index.columns)
            keys.append(names if whole and set(names) <= stored else ())
    return list(dict.fromkeys(keys))

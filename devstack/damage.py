"""Damage a replica as a person with a client does: rows go, change, and are added.

TiDB never had those that are added.

Only rows are touched that the traffic to come leaves alone, or applying would notice before they
are repaired: those that are downstream already as the last snapshot has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection

from sluice.devstack.compare import snapshot_rows
from sluice.etl.changes.formats.sql_text import quote_name

_REMOVED_ROWS, _CHANGED_ROWS, _ADDED_ROWS = 100, 50, 10
_FAR = 1_000_000_000
"""Distance of the keys of added rows from other rows' keys."""
_COLUMNS = """SELECT COLUMN_NAME, COLUMN_KEY, DATA_TYPE IN ('int', 'bigint')
 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
 ORDER BY ORDINAL_POSITION"""


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage to a table, in rows."""

    table: str
    removed: int
    changed: int
    added: int


@dataclass(frozen=True, slots=True)
class CorruptedValue:
    """One value of a row that isn't what it should be. `key`: the row's, as an SQL literal."""

    table: str
    key: str
    column: str


@dataclass(frozen=True, slots=True)
class _Table:
    """A table with a key of one number, and nothing else that is unique."""

    full_name: str
    key: str
    columns: tuple[str, ...]

    @property
    def quoted(self) -> str:
        return ".".join(f"`{part}`" for part in self.full_name.split(".", 1))


def damage(database: Connection[Any], snapshot: Path, tables: Mapping[str, int]) -> Damage | None:
    """Damage one table in `database`, the largest of `tables` (rows by name) that suits.

    `snapshot` is the folder of what will be there at the end. None if no table suits.
    """
    for name in sorted(tables, key=lambda name: -tables[name]):
        table = _describe_table(database, name)
        if table is None:
            continue
        keys = sorted(_final_keys(database, table, snapshot))
        if len(keys) >= 2 * (_REMOVED_ROWS + _CHANGED_ROWS + _ADDED_ROWS):
            return _damage_rows(database, table, keys)
    return None


def corrupt_one_value(
    database: Connection[Any], tables: Mapping[str, int]
) -> CorruptedValue | None:
    """Change one value of one row in `database`, in the largest of `tables` that suits.

    `tables` are rows by name. None if no table suits.
    """
    for name in sorted(tables, key=lambda name: -tables[name]):
        table = _describe_table(database, name)
        if table is None or not tables[name]:
            continue
        with database.cursor() as cursor:
            cursor.execute(f"SELECT MIN(`{table.key}`) FROM {table.quoted}")
            row = cursor.fetchone()
        key = row[0] if row is not None else None
        column = None if key is None else _increment_values(database, table, [str(key)])[1]
        if column is not None:
            return CorruptedValue(name, f"{table.key}={key}", column)
    return None


def _increment_values(
    database: Connection[Any], table: _Table, keys: list[str]
) -> tuple[int, str | None]:
    """Add 1 to a value of each of these rows.

    Returns how many took it, and in which column, the first that does.
    """
    with database.cursor() as cursor:
        for column in table.columns:
            if column == table.key:
                continue
            with contextlib.suppress(pymysql.err.MySQLError):
                changed = cursor.execute(
                    f"UPDATE {table.quoted} SET `{column}` = 1 + COALESCE(`{column}`, 0) WHERE"
                    f" `{table.key}` IN ({', '.join(keys)})"
                )
                if changed:
                    return changed, column
    return 0, None


def _describe_table(database: Connection[Any], full_name: str) -> _Table | None:
    with database.cursor() as cursor:
        cursor.execute(_COLUMNS, full_name.split(".", 1))
        rows = cursor.fetchall()
    keys = [(name, is_number) for name, kind, is_number in rows if kind in ("PRI", "UNI")]
    if len(keys) != 1 or not keys[0][1] or len(rows) < 2:
        return None
    return _Table(full_name, keys[0][0], tuple(name for name, _, _ in rows))


def _final_keys(database: Connection[Any], table: _Table, snapshot: Path) -> Iterator[int]:
    """Yield the keys of rows that are as they will be at the end."""
    names = ", ".join(f"CAST({quote_name(column)} AS CHAR)" for column in table.columns)
    with database.cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM {table.quoted}")
        there = set(cursor.fetchall())
    rows = snapshot_rows(snapshot, table.full_name)
    listed = next(rows)["columns"]
    places = [listed.index(column) for column in table.columns]
    at = table.columns.index(table.key)
    for row in rows:
        values = tuple(row[place] for place in places)
        if all(value is None or isinstance(value, str) for value in values) and values in there:
            yield int(values[at])


def _damage_rows(database: Connection[Any], table: _Table, keys: list[int]) -> Damage:
    """Damage every third row, so that the damage is scattered."""
    chosen = [
        str(key)
        for key in keys[:: max(1, len(keys) // (_REMOVED_ROWS + _CHANGED_ROWS + _ADDED_ROWS))]
    ]
    removed, changed = chosen[:_REMOVED_ROWS], chosen[_REMOVED_ROWS : _REMOVED_ROWS + _CHANGED_ROWS]
    copied = chosen[_REMOVED_ROWS + _CHANGED_ROWS : _REMOVED_ROWS + _CHANGED_ROWS + _ADDED_ROWS]
    others = [column for column in table.columns if column != table.key]
    names = ", ".join(f"`{column}`" for column in others)
    with database.cursor() as cursor:
        cursor.execute("SET foreign_key_checks = 0")
        gone = cursor.execute(
            f"DELETE FROM {table.quoted} WHERE `{table.key}` IN ({', '.join(removed)})"
        )
        other, _ = _increment_values(database, table, changed)
        more = cursor.execute(
            f"INSERT INTO {table.quoted} (`{table.key}`, {names}) SELECT `{table.key}` + {_FAR},"
            f" {names} FROM {table.quoted} WHERE `{table.key}` IN ({', '.join(copied)})"
        )
    return Damage(table.full_name, gone, other, more)

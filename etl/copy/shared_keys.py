"""Find rows with the same key in tables that are mixed downstream, before they are copied.

Two tables are walked in the order of a key, each from the other's last one on: few statements where
their keys lie apart, at most `MAX_STEPS` where they alternate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from sluice.etl.changes.formats.key_ranges import SPLITTABLE_KINDS, KeyColumn, in_range
from sluice.etl.changes.formats.sql_text import quote_table
from sluice.tidb.schema import Table

__all__ = ["MAX_STEPS", "SharedKey", "shared_keys"]

MAX_STEPS = 200
"""Statements at most for two tables and a key."""
_MAX_TABLES = 16
"""Each is compared with each."""

Query = Callable[[str], Sequence[tuple[bytes | None, ...]]]


@dataclass(frozen=True, slots=True)
class SharedKey:
    """A key that two tables have, as SQL; "" if it isn't known whether there is one."""

    one: Table
    other: Table
    columns: tuple[str, ...]
    key: str = ""


def shared_keys(query: Query, tables: Sequence[Table]) -> Iterator[SharedKey]:
    """Yield the first key that each two tables share, and what wasn't looked at to its end.

    `query` runs a statement upstream. Tables have the same columns and keys. Raises what it raises.
    """
    for one, other in combinations(tables[:_MAX_TABLES], 2):
        for names in one.unique_keys():
            found = _shared(query, one, other, _key(one, names))
            if found is not None:
                yield SharedKey(one, other, names, found)
    if len(tables) > _MAX_TABLES:
        yield SharedKey(tables[0], tables[_MAX_TABLES], tables[0].primary_key)


def _key(table: Table, names: Sequence[str]) -> list[KeyColumn]:
    """Return the columns of a key, [] if they can't be walked in its order."""
    columns = {column.name: column for column in table.stored_columns}
    if any(columns[name].kind not in SPLITTABLE_KINDS for name in names):
        return []
    return [KeyColumn.from_column(columns[name]) for name in names]


def _shared(query: Query, one: Table, other: Table, key: list[KeyColumn]) -> str | None:
    """Return a key that both have, as SQL, None if there is none; "" if that isn't known."""
    if not key:
        return ""
    tables, low, last = (one, other), None, None
    for step in range(MAX_STEPS):
        row = _first(query, tables[step % 2], key, low)
        if row is None:
            return None
        if row == last:
            return ", ".join(low or ())
        try:
            low = [column.literal(value or b"") for column, value in zip(key, row, strict=True)]
        except UnicodeDecodeError:
            return ""
        last = row
    return ""


def _first(
    query: Query, table: Table, key: Sequence[KeyColumn], low: Sequence[str] | None
) -> tuple[bytes | None, ...] | None:
    """Return the first key of a table from `low` on, without NULL."""
    names = ", ".join(column.quoted for column in key)
    there = " AND ".join(f"{column.quoted} IS NOT NULL" for column in key)
    rows = query(
        f"SELECT {names} FROM {quote_table(table)} WHERE {there} AND {in_range(key, low, None)}"
        f" ORDER BY {names} LIMIT 1"
    )
    return tuple(rows[0]) if rows else None

"""Profile a table's rows; the server computes the profile.

It makes one pass over all columns, and one over each column that may be an enumeration.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.expectations.dataset import ColumnShape, Dataset, Reference, TableShape, quoted

__all__ = ["MAX_VALUES", "ColumnProfile", "TableProfile", "family", "profile", "without_parent"]

MAX_VALUES = 20
"""A column with more different values is no enumeration."""
_MIN_ROWS = 100
_FAMILIES = (
    ("number", re.compile(r"(tinyint|smallint|mediumint|int|bigint|decimal|float|double|year)\b")),
    ("moment", re.compile(r"(datetime|timestamp)\b")),
    ("date", re.compile(r"date\b")),
    ("text", re.compile(r"(char|varchar)\b")),
)
_SHORT = re.compile(r"(?:char|varchar)\((\d+)\)")
_MAX_SHORT_TEXT_CHARS = 64


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """A column's profile; `nulls`: the number of rows without a value.

    `least`, `greatest`: as texts, of numbers and times only. `values`: all of them, if they are few
    enough to be an enumeration.
    """

    nulls: int
    least: str | None = None
    greatest: str | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableProfile:
    """A table profile; `columns` by name."""

    rows: int
    columns: dict[str, ColumnProfile] = field(default_factory=dict)


def family(column: ColumnShape) -> str:
    """Return ``number``, ``moment``, ``date``, ``text``, or "" for a type that isn't profiled."""
    return next((name for name, pattern in _FAMILIES if pattern.match(column.type)), "")


def profile(place: Dataset, shape: TableShape) -> TableProfile:
    """Profile the whole table. Raises SluiceError."""
    table = place.table(shape.name)
    asked = [
        (column, what, expression)
        for column in shape.columns
        for what, expression in _aggregates(column)
    ]  # fmt: skip
    select = ", ".join(["COUNT(*)", *(expression for _, _, expression in asked)])
    ((rows, *values),) = place.ask(f"SELECT {select} FROM {table}")
    found: dict[str, dict[str, Any]] = {column.name: {} for column in shape.columns}
    for (column, what, _), value in zip(asked, values, strict=True):
        found[column.name][what] = value
    enumerated = {name for key in shape.keys for name in key} | {
        n for r in shape.references for n in r.columns
    }
    columns = {}
    for column in shape.columns:
        facts = found[column.name]
        wanted = rows >= _MIN_ROWS and column.name not in enumerated and _may_be_enumeration(column)
        columns[column.name] = ColumnProfile(
            rows - int(facts["count"]), _text(facts.get("least")), _text(facts.get("greatest")),
            _values(place, table, column, rows) if wanted else (),
        )  # fmt: skip
    return TableProfile(int(rows), columns)


def without_parent(place: Dataset, table: str, reference: Reference) -> str:
    """Return SQL for what follows FROM: the rows of a table whose reference names no row.

    Raises SluiceError.
    """
    own, parent = place.table(table), place.table(reference.parent)
    pairs = list(zip(reference.columns, reference.parent_columns, strict=True))
    equal = " AND ".join(f"p.{quoted(there)} = c.{quoted(here)}" for here, there in pairs)
    given = " AND ".join(f"c.{quoted(here)} IS NOT NULL" for here, _ in pairs)
    return (
        f"{own} c LEFT JOIN {parent} p ON {equal} WHERE {given} AND p.{quoted(pairs[0][1])} IS NULL"
    )


def _aggregates(column: ColumnShape) -> Sequence[tuple[str, str]]:
    name = quoted(column.name)
    found = [("count", f"COUNT({name})")]
    if family(column) in ("number", "moment", "date"):
        found += [("least", f"MIN({name})"), ("greatest", f"MAX({name})")]
    return found


def _may_be_enumeration(column: ColumnShape) -> bool:
    short = _SHORT.match(column.type)
    return bool(short and int(short[1]) <= _MAX_SHORT_TEXT_CHARS) or column.type.startswith(
        "tinyint"
    )


def _values(place: Dataset, table: str, column: ColumnShape, rows: int) -> tuple[str, ...]:
    """Return all values, if they are few and stand in many rows each."""
    name = quoted(column.name)
    found = place.ask(
        f"SELECT DISTINCT {name} FROM {table} WHERE {name} IS NOT NULL LIMIT {MAX_VALUES + 1}"
    )
    if len(found) > min(MAX_VALUES, rows // MAX_VALUES):
        return ()
    return tuple(sorted(str(value) for (value,) in found))


def _text(value: object) -> str | None:
    return None if value is None else str(value)

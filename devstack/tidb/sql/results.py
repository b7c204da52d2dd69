"""Build result sets: rows, and columns as TiDB describes them in the header.

A column has its type, flags, character set and length there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sluice.devstack.tidb.sql import values
from sluice.tidb.column_types import (
    BIGINT,
    CHAR,
    DECIMAL,
    DOUBLE,
    ENUM,
    JSON,
    LONG,
    NULL,
    SET,
    TIME,
    VAR_STRING,
    VARCHAR,
    VARYING,
)
from sluice.tidb.schema import Column, Table

_STRINGS = {*VARYING, *LONG, CHAR, ENUM, SET, JSON}
_ENUM_FLAG, _SET_FLAG, _BINARY_FLAG = 256, 2048, 128
_BINARY = 63
_CHARSETS = {"utf8mb4": 46, "utf8": 83, "latin1": 47, "ascii": 65, "gbk": 28, "binary": _BINARY}
_NOT_FIXED = 31


@dataclass(frozen=True, slots=True)
class Header:
    """A column of a result set, and how its values (not NULL) are printed."""

    name: str
    type: int
    show: Callable[[Any], bytes]
    flags: int = 0
    charset: int = _BINARY
    length: int = 0
    decimals: int = 0
    origin: tuple[str, str, str] = ("", "", "")
    """Schema, table and column that it is of."""


@dataclass(slots=True)
class Result:
    """Rows of values; a statement without columns returns none, and changed `affected` rows."""

    columns: list[Header] = field(default_factory=list)
    rows: Iterable[Iterable[Any]] = ()
    affected: int = 0


def of_column(column: Column, name: str, table: Table | None, results_charset: str) -> Header:
    """Return the header of a table's column, as pingcap/tidb's server/column.go makes it.

    `results_charset`: @@character_set_results, "" for none.
    """
    length = max(column.flen, 0)
    if column.tp == DECIMAL:
        length += 1 + (column.decimal > 0)
    elif column.tp in _STRINGS - {JSON}:
        length *= 4
    charset = _CHARSETS.get(column.charset, _BINARY)
    if results_charset and column.tp in _STRINGS and charset != _BINARY:
        charset = _CHARSETS.get(results_charset, charset)
    decimals = column.decimal if column.decimal >= 0 else 0 if column.tp == TIME else _NOT_FIXED
    kind = {VARCHAR: VAR_STRING, ENUM: CHAR, SET: CHAR}.get(column.tp, column.tp)
    flags = column.flag | {ENUM: _ENUM_FLAG, SET: _SET_FLAG}.get(column.tp, 0)
    origin = (table.schema_name, table.name, column.name) if table is not None else ("", "", "")
    return Header(
        name,
        kind,
        values.printer(column),
        flags & 0xFFFF,
        charset,
        min(length, 0xFFFFFFFF),
        decimals & 0xFF,
        origin,
    )


def computed(name: str, kind: int) -> Header:
    """Return the header of a computed value."""
    if kind == VAR_STRING:
        return Header(name, kind, _show, 0, _CHARSETS["utf8mb4"], 4096, _NOT_FIXED)
    return Header(name, kind, _show, _BINARY_FLAG, _BINARY, 22, _NOT_FIXED if kind == DOUBLE else 0)


def kind_of(value: Any) -> int:
    """Return the type of a computed value."""
    if value is None:
        return NULL
    if isinstance(value, float):
        return DOUBLE
    if isinstance(value, Decimal):
        return DECIMAL
    return BIGINT if isinstance(value, int) else VAR_STRING


def texts(names: list[str], rows: Iterable[Iterable[Any]]) -> Result:
    """Return a result set of texts and numbers, as SHOW gives."""
    return Result([computed(name, VAR_STRING) for name in names], rows)


def _show(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else values.number_text(value)).encode(
        "utf-8", "surrogateescape"
    )

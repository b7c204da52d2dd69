"""Values of columns: how TiDB's text protocol prints them, and as what they compare and sort.

A value in a row is what `sluice.tidb.codec.column_value` gives: int, float, bytes, or text of
decimals, times, ENUM, SET and JSON.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from sluice.tidb.codec.float import format_float
from sluice.tidb.schema import Column

_NEITHER = (1e-15, 1e15)


def printer(column: Column) -> Callable[[Any], bytes]:
    """Return what turns a value of the column (not NULL) into the bytes that TiDB sends."""
    kind = column.kind
    if kind in ("text", "binary"):
        return lambda value: value if isinstance(value, bytes) else value.encode()
    if kind == "float":
        return lambda value: format_float(value).encode()
    if kind == "double":
        return lambda value: double_text(value).encode()
    if kind == "bit":
        width = (max(column.flen, 1) + 7) // 8
        return lambda value: int(value).to_bytes(width, "big")
    if kind == "year":
        return lambda value: b"%04d" % value
    return lambda value: str(value).encode()


def double_text(value: float) -> str:
    """Return a DOUBLE as TiDB prints it: shortest digits.

    It has an exponent from 1e15 on and below 1e-15.
    """
    if value == 0 or _NEITHER[0] <= abs(value) < _NEITHER[1]:
        text = np.format_float_positional(value, unique=True, trim="-")
        return "0" if text == "-0" else text
    mantissa, exponent = np.format_float_scientific(value, unique=True, trim="-").split("e")
    return f"{mantissa}e{int(exponent)}"


def comparer(column: Column) -> Callable[[Any], Any]:
    """Return what makes values, and literals compared with the column, order as in TiDB."""
    kind = column.kind
    if kind in ("int", "year", "bit"):
        return _as_int
    if kind in ("float", "double"):
        return lambda value: float(_text(value)) if isinstance(value, str | bytes) else float(value)
    if kind == "decimal":
        return _as_decimal
    if kind in ("date", "datetime", "timestamp"):
        return lambda value: _moment(_text(value))
    if kind == "time":
        return lambda value: _duration(_text(value))
    if kind == "binary":
        return _as_bytes
    if kind in ("text", "enum", "set"):
        return functools.partial(collation_key, column.collate)
    return _text


def sorter(column: Column) -> Callable[[Any], Any]:
    """Return as `comparer`, but ENUM and SET sort by their numbers."""
    if column.kind == "enum":
        return lambda value: column.elems.index(value) + 1 if value in column.elems else 0
    if column.kind == "set":
        return lambda value: sum(1 << column.elems.index(name) for name in value.split(",") if name)
    return comparer(column)


def collation_key(collation: str, value: Any) -> Any:
    """Return bytes that compare as texts do under the collation.

    Trailing blanks don't count but in `binary`.
    """
    raw = _as_bytes(value)
    if collation in ("", "binary") or "_nopad_" in collation:
        return raw
    if collation.endswith("_bin"):
        return raw.rstrip(b" ")
    text = unicodedata.normalize("NFKD", raw.decode("utf-8", "replace").rstrip(" "))
    return (
        "".join(c for c in text if not unicodedata.combining(c)).upper().encode("utf-8", "replace")
    )


def shifted(text: str, minutes: int) -> str:
    """Return a TIMESTAMP in UTC as a session with this offset sees it; the zero time stays."""
    if not minutes or text.startswith("0000"):
        return text
    whole, dot, fraction = text.partition(".")
    moved = datetime.fromisoformat(whole) + timedelta(minutes=minutes)
    return f"{moved.isoformat(' ')}{dot}{fraction}"


def plain(value: Any) -> Any:
    """Return a value without a column, for comparison.

    Texts that are numbers count as numbers with numbers.
    """
    if isinstance(value, bool):
        return int(value)
    return value


def as_number(value: Any) -> Any:
    """Return a value's number in arithmetic; a text's leading digits, as MySQL takes it."""
    if value is None or isinstance(value, int | float | Decimal):
        return value
    try:
        return Decimal(_text(value).strip() or "0")
    except InvalidOperation:
        return Decimal(0)


def number_text(value: Any) -> str:
    """Return the text that TiDB prints for a computed number."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return double_text(value)
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else number_text(value)).encode(
        "utf-8", "surrogateescape"
    )


def _as_int(value: Any) -> Any:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes):  # x'...' is a number where numbers are compared
        return int.from_bytes(value, "big")
    return as_number(value)


def _as_decimal(value: Any) -> Any:
    if isinstance(value, float):
        return Decimal(repr(value))
    return Decimal(value) if isinstance(value, int) else as_number(value)


def _moment(text: str) -> str:
    whole, _, fraction = text.strip().partition(".")
    return f"{whole if len(whole) > 10 else whole + ' 00:00:00'}.{fraction:0<6}"


def _duration(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    whole, _, fraction = text.lstrip("-").partition(".")
    hours, minutes, seconds = ([0, 0] + [int(part) for part in whole.split(":")])[-3:]
    return sign * (((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(f"{fraction:0<6}"))

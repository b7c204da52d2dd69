"""Convert a column's values for comparisons: numbers, text, bytes, moments and durations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from sluice.etl.history.errors import ConditionError
from sluice.tidb.codec import lenient_datetimes
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.float import format_float
from sluice.tidb.codec.times import parse_duration
from sluice.tidb.schema import Column

Constant = int | float | Decimal | str | bytes | None
"""A condition's constant; numbers as Decimal."""

_COMPARISON_FAMILIES = {
    "int": "number",
    "year": "number",
    "bit": "number",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "text": "text",
    "enum": "text",
    "set": "text",
    "json": "text",
    "binary": "bytes",
    "vector": "bytes",
    "date": "moment",
    "datetime": "moment",
    "timestamp": "moment",
    "time": "duration",
}
_MOMENT_CHARS = 26
"""Characters of `YYYY-MM-DD HH:MM:SS.ffffff`."""


def comparison_family(column: Column) -> str:
    """Return a column's family: columns of one family can be compared with each other."""
    return _COMPARISON_FAMILIES.get(column.kind, "text")


def comparable(column: Column, array: pa.Array) -> list[Any]:
    """Convert an array's values (as `sluice.tidb.rows` decodes them) into a form with their order.

    None for NULL.
    """
    raw = array.cast(pa.large_binary()) if pa.types.is_large_string(array.type) else array
    convert = _converter(column)
    return [None if value is None else convert(value) for value in raw.to_pylist()]


def _converter(column: Column) -> Callable[[Any], Any]:
    match comparison_family(column), column.kind:
        case "number", "decimal":
            return lambda value: Decimal(value.decode())
        case "number", "float":
            return lambda value: float(format_float(value))
        case "moment", _:
            return lambda value: _moment(value.decode())
        case "duration", _:
            return lambda value: parse_duration(value.decode())
        case "text", _:
            return lambda value: value.decode("utf-8", "surrogateescape")
    return lambda value: value


def constant_for(column: Column, constant: Constant) -> Any:
    """Convert a constant into the form of the column's values. Raises ConditionError."""
    if constant is None:
        return None
    try:
        return _CONSTANT_PARSERS[comparison_family(column)](column, constant)
    except ConditionError:
        raise
    except (CodecError, InvalidOperation, ValueError) as error:
        raise ConditionError(
            f"--where: invalid value {constant!r} for the column {column.name} ({column.kind})"
        ) from error


def _number(column: Column, constant: Constant) -> Any:
    if isinstance(constant, bytes):
        return int.from_bytes(constant, "big")
    number = Decimal(str(constant))
    return float(number) if column.kind in ("float", "double") else number


def _text(column: Column, constant: Constant) -> str:
    if isinstance(constant, bytes):
        return constant.decode("utf-8", "surrogateescape")
    if not isinstance(constant, str):
        raise ConditionError(
            f"--where: the column {column.name} is not numeric: write {constant} in quotes"
        )
    return constant


def _bytes(column: Column, constant: Constant) -> bytes:
    return (
        constant
        if isinstance(constant, bytes)
        else _text(column, constant).encode("utf-8", "surrogateescape")
    )


def _moment_constant(column: Column, constant: Constant) -> str:
    text = _text(column, constant)
    if column.kind == "timestamp":
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            text = moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    return lenient_datetimes.parse_moment(text)


def _duration_constant(column: Column, constant: Constant) -> int:
    return parse_duration(lenient_datetimes.parse_duration(_text(column, constant)))


def _moment(text: str) -> str:
    whole = text if " " in text else f"{text} 00:00:00"
    return (whole if "." in whole else f"{whole}.").ljust(_MOMENT_CHARS, "0")


_CONSTANT_PARSERS: dict[str, Callable[[Column, Constant], Any]] = {
    "number": _number,
    "text": _text,
    "bytes": _bytes,
    "moment": _moment_constant,
    "duration": _duration_constant,
}

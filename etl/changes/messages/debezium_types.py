"""Give columns the values and the schemas that Debezium's connector for MySQL gives them.

Lossless, DECIMAL and BIGINT UNSIGNED are text. As TiCDC, DECIMAL is a double, BIGINT UNSIGNED an
int64 that wraps. Zero dates and dates that don't exist have no number in either: they are null, in
a column that is NOT NULL 1970-01-01, as in Debezium.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.messages.json_text import (
    base64_strings,
    by_distinct,
    float_numbers,
    json_string,
    plain_strings,
    text_strings,
)
from sluice.etl.changes.messages.message import BINARY, digits
from sluice.tidb import column_types as types
from sluice.tidb.schema import Column

_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_MILLI_FSP = 3
"""Up to so many fraction digits a DATETIME is in ms, with more in us."""
_INT16 = (types.TINYINT, types.SMALLINT)
_PLAIN = {"year": "int32", "date": "int32", "datetime": "int64", "time": "int64"}
_NAMES = {
    "enum": "io.debezium.data.Enum",
    "set": "io.debezium.data.EnumSet",
    "json": "io.debezium.data.Json",
    "date": "io.debezium.time.Date",
    "time": "io.debezium.time.MicroTime",
    "timestamp": "io.debezium.time.ZonedTimestamp",
    "year": "io.debezium.time.Year",
}


def json_values(column: Column, array: pa.Array, *, lossless: bool) -> pa.LargeBinaryArray:
    """Return a column's values as JSON; nulls are null, and dates that have no number may be."""
    match column.kind:
        case "int" if _is_large(column):
            return plain_strings(digits(array)) if lossless else digits(_wrapped(array))
        case "int" | "year":
            return digits(array)
        case "float" | "double":
            return float_numbers(array)
        case "decimal":
            return plain_strings(array.cast(BINARY)) if lossless else array.cast(BINARY)
        case "bit":
            return by_distinct(array, lambda bits: _bits(column, bits))
        case "binary":
            return base64_strings(array)
        case "enum" | "set":
            return by_distinct(array, lambda number: _elements(column, number))
        case "date" | "datetime" | "timestamp" | "time":
            return by_distinct(array, lambda text: _moment(column, text))
        case _:
            return text_strings(array, lossless=lossless)


def field_schema(column: Column, *, lossless: bool) -> dict[str, Any]:
    """Return a column's schema as Kafka Connect writes it."""
    schema: dict[str, Any] = {"type": _type_name(column, lossless=lossless)}
    schema["optional"] = not column.not_null
    name, parameters = _NAMES.get(column.kind, ""), {}
    if column.kind == "datetime":
        unit = "Timestamp" if column.fsp <= _MILLI_FSP else "MicroTimestamp"
        name = f"io.debezium.time.{unit}"
    elif column.kind == "bit" and column.flen > 1:
        name, parameters = "io.debezium.data.Bits", {"length": str(column.flen)}
    elif column.kind in ("enum", "set"):
        allowed = (element.replace(",", "\\,") for element in column.elems)
        parameters = {"allowed": ",".join(allowed)}
    if name:
        schema |= {"name": name, "version": 1}
    if parameters:
        schema["parameters"] = parameters
    schema["field"] = column.name
    return schema


def row_schema(
    columns: Sequence[Column], name: str, *, optional: bool, lossless: bool
) -> dict[str, Any]:
    """Return the schema of a row of these columns."""
    return {
        "type": "struct",
        "optional": optional,
        "name": name,
        "fields": [field_schema(column, lossless=lossless) for column in columns],
    }


def _type_name(column: Column, *, lossless: bool) -> str:
    match column.kind:
        case "int" if _is_large(column):
            return "string" if lossless else "int64"
        case "int":
            small = column.tp in _INT16 and not (column.unsigned and column.tp == types.SMALLINT)
            large = column.tp == types.BIGINT or (column.unsigned and column.tp == types.INT)
            return "int16" if small else "int64" if large else "int32"
        case "float":
            return "double" if column.decimal >= 0 and not lossless else "float"
        case "double":
            return "double"
        case "decimal":
            return "string" if lossless else "double"
        case "bit":
            return "bytes" if column.flen > 1 else "boolean"
        case "binary":
            return "bytes" if lossless else "string"
        case kind:
            return _PLAIN.get(kind, "string")


def _is_large(column: Column) -> bool:
    return column.unsigned and column.tp == types.BIGINT


def _wrapped(array: pa.Array) -> pa.Array:
    numbers = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(np.uint64)
    missing = np.asarray(array.is_null())
    return pa.array(numbers.view(np.int64), mask=missing)


def _bits(column: Column, bits: int | None) -> bytes | None:
    if bits is None:
        return None
    if column.flen <= 1:
        return b"true" if bits else b"false"
    raw = bits.to_bytes((column.flen + 7) // 8, "little")
    return b'"' + base64.b64encode(raw) + b'"'


def _elements(column: Column, number: int | None) -> bytes | None:
    if number is None:
        return None
    if column.kind == "enum":
        return json_string(column.elems[number - 1] if 0 < number <= len(column.elems) else "")
    return json_string(",".join(e for bit, e in enumerate(column.elems) if number >> bit & 1))


def _moment(column: Column, text: str | None) -> bytes | None:
    if text is None:
        return None
    if column.kind == "time":
        return b"%d" % _micros(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None if not column.not_null else _epoch(column)
    if column.kind == "timestamp":
        return b'"%bZ"' % text.replace(" ", "T").encode()
    delta = moment - _EPOCH
    if column.kind == "date":
        return b"%d" % delta.days
    return b"%d" % (delta // (_MICROSECOND * (1000 if column.fsp <= _MILLI_FSP else 1)))


def _epoch(column: Column) -> bytes:
    return b'"1970-01-01T00:00:00Z"' if column.kind == "timestamp" else b"0"


def _micros(text: str) -> int:
    hours, minutes, seconds = text.lstrip("-").split(":")
    whole, _, fraction = seconds.partition(".")
    found = (int(hours) * 60 + int(minutes)) * 60 + int(whole)
    size = found * 1_000_000 + int(fraction.ljust(6, "0"))
    return -size if text.startswith("-") else size

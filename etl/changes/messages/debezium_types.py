"""Give columns the values that Debezium's connector for MySQL gives them.

Lossless, DECIMAL and BIGINT UNSIGNED are text. As TiCDC, DECIMAL is a double, BIGINT UNSIGNED an
int64 that wraps. Zero dates and dates that don't exist have no number in either: they are null, in
a column that is NOT NULL 1970-01-01, as in Debezium.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.sql_columns import data_of, join
from sluice.etl.changes.messages.json_text import (
    base64_strings,
    float_numbers,
    plain_strings,
    text_strings,
)
from sluice.etl.changes.messages.message import BINARY, digits
from sluice.tidb import column_types as types
from sluice.tidb.codec.columnar import from_values
from sluice.tidb.schema import Column

MILLI_FSP = 3
"""Up to so many fraction digits a DATETIME is in ms, with more in us."""
_DAY_MICROS = 86_400_000_000
_MOMENT_WIDTH = len("2024-05-25 05:09:29.500000")


def json_values(column: Column, array: pa.Array, *, lossless: bool) -> pa.LargeBinaryArray:
    """Return a column's values as JSON; nulls are null, and dates that have no number may be."""
    if column.kind == "decimal":
        return plain_strings(array.cast(BINARY)) if lossless else array.cast(BINARY)
    found = connect_values(column, array, lossless=lossless)
    if pa.types.is_integer(found.type):
        return digits(found)
    if pa.types.is_floating(found.type):
        return float_numbers(found)
    if pa.types.is_boolean(found.type):
        return found.cast(pa.large_string()).cast(BINARY)
    if pa.types.is_large_binary(found.type):
        return base64_strings(found)
    return text_strings(found, lossless=lossless)


def connect_values(column: Column, array: pa.Array, *, lossless: bool) -> pa.Array:
    """Return a column's values in the Arrow type of its schema; large binary for `bytes`.

    Of DECIMAL it is text. Nulls are null, and dates that have no number may be.
    """
    match column.kind:
        case "int" if is_large(column):
            return array.cast(pa.large_string()) if lossless else _wrapped(array)
        case "bit":
            return _bits(column, array)
        case "enum" | "set":
            return element_texts(column, array)
        case "date" | "datetime" | "timestamp":
            return _moments(column, array)
        case "time":
            return _by_distinct(array, _micros, pa.int64())
        case _:
            return array


def element_texts(column: Column, array: pa.Array) -> pa.Array:
    """Return an ENUM's elements and a SET's with commas between; "" for what is invalid."""
    elements = column.elems

    def text(number: int) -> str:
        if column.kind == "enum":
            return elements[number - 1] if 0 < number <= len(elements) else ""
        return ",".join(e for bit, e in enumerate(elements) if number >> bit & 1)

    return _by_distinct(array, text, pa.large_string())


def is_large(column: Column) -> bool:
    """Return whether a column's numbers may be too large for an int64."""
    return column.unsigned and column.tp == types.BIGINT


def _wrapped(array: pa.Array) -> pa.Array:
    numbers = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(np.uint64)
    missing = np.asarray(array.is_null())
    return pa.array(numbers.view(np.int64), mask=missing)


def _bits(column: Column, array: pa.Array) -> pa.Array:
    if column.flen <= 1:
        return pc.not_equal(array, pa.scalar(0, pa.uint64()))
    width = (column.flen + 7) // 8
    return _by_distinct(array, lambda number: number.to_bytes(width, "little"), BINARY)


def _moments(column: Column, array: pa.Array) -> pa.Array:
    """Return days, ms or µs since 1970-01-01; of TIMESTAMPs text in ISO 8601."""
    epoch: str | int = 0
    days, micros, exist = _days_and_micros(array)
    if column.kind == "timestamp":
        iso = pc.replace_substring(array, " ", "T", max_replacements=1)
        found, epoch = join(iso.cast(BINARY), b"Z").cast(array.type), "1970-01-01T00:00:00Z"
    else:
        if column.kind == "datetime":
            days = (days * _DAY_MICROS + micros) // (1000 if column.fsp <= MILLI_FSP else 1)
        found = pa.array(days)
    if column.not_null:
        found = pc.if_else(pa.array(exist), found, pa.scalar(epoch, found.type))
    else:
        found = pc.if_else(pa.array(exist), found, pa.scalar(None, found.type))
    return pc.if_else(array.is_valid(), found, pa.scalar(None, found.type))


def _days_and_micros(
    array: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return days since 1970-01-01, µs of the day, and whether there is such a day."""
    text = pc.ascii_rpad(pc.fill_null(array, ""), _MOMENT_WIDTH, "0")
    _, values = data_of(text.cast(BINARY))
    digit = values.reshape(-1, _MOMENT_WIDTH).astype(np.int64) - ord("0")

    def number(first: int, end: int) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = digit[:, first:end] @ 10 ** np.arange(end - first)[::-1]
        return found

    year, month, day = number(0, 4), number(5, 7), number(8, 10)
    exist = (year > 0) & (month >= 1) & (month <= 12) & (day >= 1)
    months = np.where(exist, (year - 1970) * 12 + month - 1, 0)
    first, following = (
        each.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        for each in (months, months + 1)
    )
    exist &= first + day - 1 < following
    seconds = (number(11, 13) * 60 + number(14, 16)) * 60 + number(17, 19)
    return first + day - 1, seconds * 1_000_000 + number(20, 26), exist


def _by_distinct(array: pa.Array, convert: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Return what `convert` makes of each different value once; nulls stay null."""
    coded = array.dictionary_encode()
    return from_values([convert(v) for v in coded.dictionary.to_pylist()], kind).take(coded.indices)


def _micros(text: str) -> int:
    hours, minutes, seconds = text.lstrip("-").split(":")
    whole, _, fraction = seconds.partition(".")
    found = (int(hours) * 60 + int(minutes)) * 60 + int(whole)
    size = found * 1_000_000 + int(fraction.ljust(6, "0"))
    return -size if text.startswith("-") else size

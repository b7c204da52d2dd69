"""Map a column to its type in the lake, and its values. docs/reference/lake.md has the table.

A value that its type can't hold (a zero date, bytes that aren't text) is null there, and stands as
text in `_exact`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.history.lake._moments import days, microseconds
from sluice.etl.history.lake._names import ROWID, column_name
from sluice.tidb import column_types
from sluice.tidb.schema import Column, Table

__all__ = ["Converted", "LakeColumn", "lake_columns"]

MAX_DECIMAL_PRECISION = 38
"""Digits of a decimal that Spark, DuckDB and Iceberg can hold."""
_UNSIGNED_64 = pa.decimal128(20)

Converted = tuple[pa.Array, pa.Array | None]
"""Values, and the exact text of those that are null only since their type can't hold them; None if
there are none.
"""
_Convert = Callable[[pa.Array], Converted]


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a table as the lake has it."""

    source: str
    """Name of the column upstream."""
    name: str
    type: pa.DataType
    convert: _Convert = field(compare=False)
    """Converts values as `sluice.tidb.rows` decodes them."""


def lake_columns(table: Table) -> tuple[LakeColumn, ...]:
    """Return a table's lake columns: all but virtual generated columns, in table order.

    And the hidden row id.
    """
    found = [
        LakeColumn(column.name, column_name(column.name), *_lake_column(column))
        for column in table.stored_columns
    ]
    if table.handle_kind == "heap":
        found.append(LakeColumn(ROWID, ROWID, pa.int64(), _unchanged))
    return tuple(found)


def _lake_column(column: Column) -> tuple[pa.DataType, _Convert]:
    match column.kind:
        case "int":
            if column.unsigned and column.tp == column_types.BIGINT:
                return _UNSIGNED_64, _cast(_UNSIGNED_64)
            return pa.int64(), _cast(pa.int64())
        case "year":
            return pa.int32(), _cast(pa.int32())
        case "bit":
            kind = pa.int64() if column.flen < 64 else _UNSIGNED_64
            return kind, _cast(kind)
        case "float":
            return pa.float32(), _unchanged
        case "double":
            return pa.float64(), _unchanged
        case "decimal":
            return _decimal(column)
        case "date":
            return pa.date32(), _dates
        case "datetime":
            return pa.timestamp("us"), _moments(column, pa.timestamp("us"))
        case "timestamp":
            return pa.timestamp("us", "UTC"), _moments(column, pa.timestamp("us", "UTC"))
        case "binary" | "vector":
            return pa.binary(), _unchanged
        case _:
            return pa.string(), _texts


def _unchanged(values: pa.Array) -> Converted:
    return values, None


def _cast(kind: pa.DataType) -> _Convert:
    def convert(values: pa.Array) -> Converted:
        try:
            return values.cast(kind), None
        except (
            pa.ArrowInvalid
        ):  # beyond the column's own type, too, as TiDB stores them in a mode that isn't strict
            fits = [_is_within(number, kind) for number in values.to_pylist()]
            return _split(values, np.array(fits, bool), lambda some: some.cast(kind))

    return convert


def _is_within(number: int | None, kind: pa.DataType) -> bool:
    try:
        pa.array([number], kind)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def _decimal(column: Column) -> tuple[pa.DataType, _Convert]:
    digits, fraction = column.flen, max(0, column.decimal)
    if not 0 < digits <= MAX_DECIMAL_PRECISION or fraction > digits:
        return pa.string(), _texts
    kind = pa.decimal128(digits, fraction)

    def convert(values: pa.Array) -> Converted:
        try:
            return values.cast(kind), None
        except pa.ArrowInvalid:  # more digits than the column has now
            fits = [_fits(text, kind) for text in values.to_pylist()]
            return _split(values, np.array(fits, bool), lambda some: some.cast(kind))

    return kind, convert


def _fits(text: str | None, kind: pa.DataType) -> bool:
    try:
        pa.array([text], pa.large_string()).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _dates(values: pa.Array) -> Converted:
    found, there = days(values)
    return _with_exact(pa.array(found.astype(np.int32), mask=~there).cast(pa.date32()), values)


def _moments(column: Column, kind: pa.DataType) -> _Convert:
    def convert(values: pa.Array) -> Converted:
        found, there = microseconds(values, column.fsp)
        return _with_exact(pa.array(found, mask=~there).cast(kind), values)

    return convert


def _with_exact(converted: pa.Array, values: pa.Array) -> Converted:
    if converted.null_count == values.null_count:
        return converted, None
    return converted, pc.if_else(converted.is_null(), values, pa.scalar(None, values.type))


def _texts(values: pa.Array) -> Converted:
    raw = values.cast(pa.large_binary()) if pa.types.is_large_string(values.type) else values
    try:
        raw.cast(pa.large_string())
    except pa.ArrowInvalid:
        return _split(
            raw,
            np.array([_is_text(data) for data in raw.to_pylist()]),
            lambda some: some.cast(pa.large_string()),
        )
    return values, None


def _is_text(data: bytes | None) -> bool:
    try:
        (data or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _split(
    values: pa.Array, fits: np.ndarray, convert: Callable[[pa.Array], pa.Array]
) -> Converted:
    """Convert `values` where they fit.

    The others exactly: text as it is, numbers as text, bytes in hexadecimal.
    """
    good = pc.if_else(pa.array(fits), values, pa.scalar(None, values.type))
    exact = [
        None if ok or value is None else value.hex() if isinstance(value, bytes) else str(value)
        for ok, value in zip(fits.tolist(), values.to_pylist(), strict=True)
    ]
    return convert(good), pa.array(exact, pa.large_string())

"""Take over those of Spark's filters that keep rows, portions or windows from being read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from sluice.spark.portions import PortionReader, RowTest
from sluice.tidb import tso

__all__ = ["push_filters"]


def push_filters(
    reader: PortionReader, filters: Iterable[Filter]
) -> tuple[PortionReader, list[Filter]]:
    """Return a reader of what fits the filters, and those that Spark must still apply itself.

    Equality and IN are taken over for columns of exact types, comparisons for `_commit_ts`, of
    `_commit_time` what concerns whole milliseconds. `reader`'s query is bound.
    """
    left = []
    for each in filters:
        column = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else ""
        since, until, is_whole = _range(column, each)
        query = reader.query
        reader = replace(
            reader,
            query=replace(
                query, since=max(query.since or 0, since), until=min(query.until or 0, until)
            ),
        )
        test = _test(reader.columns.arrow, column, each)
        if test is not None:
            reader = replace(reader, tests=(*reader.tests, test))
        if test is None and not is_whole:
            left.append(each)
    return reader, left


_ALL = (0, 1 << 63, False)


def _range(column: str, each: Filter) -> tuple[int, int, bool]:
    """Return the range (since, until] of TSO in which a filter holds, and whether in all of it."""
    value = getattr(each, "value", None)
    if column == "_commit_ts" and isinstance(value, int):
        match each:
            case EqualTo():
                return value - 1, value, True
            case GreaterThan():
                return value, _ALL[1], True
            case GreaterThanOrEqual():
                return value - 1, _ALL[1], True
            case LessThan():
                return 0, value - 1, True
            case LessThanOrEqual():
                return 0, value, True
    if column == "_commit_time" and isinstance(value, datetime):
        first = tso.from_datetime(value)
        match each:
            case EqualTo():
                return first - 1, tso.last_of_ms(first), False
            case GreaterThan() | GreaterThanOrEqual():
                return first - 1, _ALL[1], False
            case LessThan() | LessThanOrEqual():
                return 0, tso.last_of_ms(first), False
    return _ALL


def _test(schema: pa.Schema, column: str, each: Filter) -> RowTest | None:
    if column not in schema.names or not isinstance(each, EqualTo | In):
        return None
    values = each.value if isinstance(each, In) else (each.value,)
    kind = schema.field(column).type
    if not all(any(_is_exact(value, types, kind) for types in _EXACT) for value in values):
        return None
    try:
        pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
    return RowTest(column, tuple(values))


_EXACT = (
    (int, pa.types.is_integer),
    (str, pa.types.is_string),
    (bytes, pa.types.is_binary),
    (Decimal, pa.types.is_decimal),
    (date, pa.types.is_date),
)
"""Types of which two values are equal to Spark exactly if they are the same to Arrow."""


def _is_exact(value: Any, types: tuple[Any, Any], kind: pa.DataType) -> bool:
    return isinstance(value, types[0]) and not isinstance(value, bool | datetime) and types[1](kind)

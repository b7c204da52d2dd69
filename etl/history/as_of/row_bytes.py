"""Encode rows as bytes that are equal exactly where the rows are, whatever their source.

The sources are the binlog, a dump, TiDB or another database. What differs between two readings of
one value is removed: zeros that end a fraction, the sign of a zero, digits of a FLOAT that TiDB
doesn't show, the order of a JSON document's members and the spelling of its numbers. Text and bytes
count as they are, under no collation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.tidb.codec.float import format_float
from sluice.tidb.schema import Column

_FRACTIONS = ("decimal", "date", "datetime", "timestamp", "time")
_MAX_EXACT_INTEGER = 2**53


def row_bytes(
    columns: Sequence[Column], arrays: Mapping[str, pa.Array], *, signed_zeros: Collection[str] = ()
) -> pa.LargeBinaryArray:
    """Return one value a row: its values in `columns`, each after its length, a NULL as `n`.

    `arrays` by column name, in types and texts of `sluice.tidb.rows.arrow_schema`. At least one
    column. `signed_zeros`: kinds of columns (`float`, `double`) in which 0 and -0 are two values.
    """
    fields = [
        _field(_plain(column, arrays[column.name], signed_zeros=signed_zeros)) for column in columns
    ]
    return fields[0] if len(fields) == 1 else pc.binary_join_element_wise(*fields, _scalar(b""))


def _scalar(value: bytes) -> pa.LargeBinaryScalar:
    """Return a scalar, made late: the first one of a process has pyarrow import pandas."""
    return pa.scalar(value, pa.large_binary())


def _field(plain: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    lengths = pc.binary_length(plain).cast(pa.large_string()).cast(pa.large_binary())
    with_length = pc.binary_join_element_wise(lengths, plain, _scalar(b":"))
    return pc.fill_null(with_length, _scalar(b"n"))


def _plain(
    column: Column, array: pa.Array, *, signed_zeros: Collection[str]
) -> pa.LargeBinaryArray:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = column.kind
    if kind == "float":
        array = _six_digit_floats(array.cast(pa.float64()))
    if kind in signed_zeros:
        array = array.cast(pa.float64()).view(pa.int64())
    elif kind in ("float", "double"):
        zero = pa.scalar(0.0, pa.float64())
        array = pc.add(array.cast(pa.float64()), zero).view(pa.int64())
    elif kind in _FRACTIONS:
        array = _without_end_zeros(array.cast(pa.large_string()))
    elif kind == "json":
        array = _documents(array)
    if pa.types.is_integer(array.type):
        array = array.cast(pa.large_string())
    return array.cast(pa.large_binary())


def _six_digit_floats(array: pa.Array) -> pa.Array:
    """Round FLOATs that TiDB's result sets show with six digits: dumps hold no more of them."""
    size = pc.abs(array)
    far = pc.and_(pc.greater(size, 0.0), pc.or_(pc.less(size, 1e-15), pc.greater_equal(size, 1e15)))
    if not pc.any(far).as_py():
        return array
    shown = [
        None if value is None else float(format_float(value))
        for value in array.filter(far).to_pylist()
    ]
    return pc.replace_with_mask(array, pc.fill_null(far, False), pa.array(shown, pa.float64()))  # noqa: FBT003


def _without_end_zeros(array: pa.Array) -> pa.Array:
    cut = pc.replace_substring_regex(array, r"\.?0+$", "")
    array = pc.if_else(pc.match_substring(array, "."), cut, array)
    negative_zero = pc.match_substring_regex(array, r"^-[0:]*$")
    return pc.if_else(negative_zero, pc.utf8_slice_codeunits(array, 1), array)


def _documents(array: pa.Array) -> pa.Array:
    encoded = array.dictionary_encode()
    texts = [_document(text) for text in encoded.dictionary.cast(pa.large_binary()).to_pylist()]
    return pa.array(texts, pa.large_binary()).take(encoded.indices)


def _document(text: bytes) -> bytes:
    try:
        parsed = json.loads(text, parse_float=_number, parse_int=_number)
    except (ValueError, RecursionError):
        return text
    return json.dumps(parsed, sort_keys=True, separators=(",", ":")).encode()


def _number(text: str) -> Any:
    """Spell a number so that 1 and 1.0 are one, and so is what a double holds as one.

    Integers of 64 bits are exact.
    """
    if text.lstrip("-").isdigit() and abs(int(text)) < 2**64:
        return int(text)
    value = float(text)
    return (
        int(value)
        if math.isfinite(value) and value == int(value) and abs(value) < _MAX_EXACT_INTEGER
        else value
    )

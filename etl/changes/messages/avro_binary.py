"""Write Avro's binary form from Arrow columns, whole columns at a time.

Nulls stay null; `optional` makes branches of a union of them. Whole numbers are zig-zag varints,
text and bytes have their length in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.sql_columns import join
from sluice.etl.changes.messages.message import BINARY
from sluice.tidb.codec.varint import encode_varint

NULL_FIRST, NULL_LAST = (b"\0", b"\2"), (b"\2", b"\0")
"""Branches of a union: (of a null, of a value)"""
_INT64_DIGITS = 18
"""Most digits of a decimal that is surely an int64."""

Bytes = npt.NDArray[np.uint8]


def longs(array: pa.Array) -> pa.LargeBinaryArray:
    """Return whole numbers of up to 64 bits; unsigned ones wrap above 2⁶³ - 1."""
    return _varints(_int64(array), array)


def doubles(array: pa.Array) -> pa.LargeBinaryArray:
    """Return FLOATs in four bytes, DOUBLEs in eight."""
    kind = "<f4" if pa.types.is_float32(array.type) else "<f8"
    numbers = np.asarray(pc.fill_null(array, 0)).astype(kind, copy=False)
    width = numbers.dtype.itemsize
    return _ragged(numbers.view(np.uint8).reshape(-1, width), None, array)


def booleans(array: pa.Array) -> pa.LargeBinaryArray:
    """Return a byte each."""
    return pc.if_else(array, pa.scalar(b"\1", BINARY), pa.scalar(b"\0", BINARY))


def sized(array: pa.Array) -> pa.LargeBinaryArray:
    """Return text or bytes with their length in front."""
    raw = array.cast(BINARY)
    return join(_varints(_int64(pc.binary_length(raw)), raw), raw)


def number_bytes(array: pa.Array) -> pa.LargeBinaryArray:
    """Return unsigned whole numbers as their bytes, the highest first, without zeros in front."""
    numbers = np.asarray(pc.fill_null(array, 0)).astype(">u8")
    matrix = numbers.view(np.uint8).reshape(-1, 8)
    found = matrix != 0
    found[:, -1] = True
    return _ragged(matrix, 8 - found.argmax(axis=1), array, from_end=True)


def decimal_bytes(array: pa.Array, precision: int, scale: int) -> pa.LargeBinaryArray:
    """Return decimals, given as text, as the fewest bytes of their two's complement.

    Raises ValueError for one with more fraction digits than `scale`.
    """
    text = array.cast(pa.large_string())
    if precision > _INT64_DIGITS or not _has_scale(text, scale):
        found = [None if v is None else decimal_number(v, scale) for v in text.to_pylist()]
        return pa.array(found, BINARY)
    digits = pc.replace_substring(text, ".", "", max_replacements=1)
    numbers = _int64(digits.cast(pa.int64()))
    matrix = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
    magnitude = (numbers ^ (numbers >> 63)).view(np.uint64)
    sizes = np.ones(len(numbers), np.int64)
    for size in range(1, 8):
        sizes += magnitude >= np.uint64(1 << (8 * size - 1))
    return _ragged(matrix, sizes, array, from_end=True)


def optional(
    values: pa.LargeBinaryArray, branches: tuple[bytes, bytes] = NULL_FIRST
) -> pa.LargeBinaryArray:
    """Return values of a union of null and another type."""
    null, value = branches
    branched = join(value, values)
    return pc.fill_null(branched, pa.scalar(null, BINARY)) if values.null_count else branched


def record(
    fields: Sequence[pa.LargeBinaryArray | bytes], count: int
) -> pa.LargeBinaryArray | bytes:
    """Return records of these fields, in order; one for all if all fields are constants."""
    if any(isinstance(field, pa.Array) for field in fields):
        return join(*fields)
    return b"".join(fields)


def long_text(number: int) -> bytes:
    """Return one whole number."""
    return encode_varint(number)  # no Arrow: it is called on import, and would load pandas


def sized_text(text: str) -> bytes:
    """Return one text with its length in front."""
    raw = text.encode("utf-8", "surrogateescape")
    return long_text(len(raw)) + raw


def decimal_number(text: str, scale: int) -> bytes:
    """Return one decimal as the fewest bytes of its two's complement.

    Raises ValueError for one with more fraction digits than `scale`.
    """
    whole, _, fraction = text.partition(".")
    if fraction[scale:].strip("0"):
        raise ValueError(f"decimal {text} has more than {scale} fraction digits")
    number = int(whole + fraction[:scale].ljust(scale, "0"))  # Decimal would round to 28 digits
    magnitude = number if number >= 0 else ~number
    return number.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _has_scale(text: pa.Array, scale: int) -> bool:
    places = pc.find_substring(text, ".")
    if scale == 0:
        return not pc.any(pc.greater_equal(places, 0)).as_py()
    ends = pc.subtract(pc.binary_length(text), pc.add(places, 1))
    same = pc.and_(pc.equal(ends, scale), pc.greater_equal(places, 0))
    return pc.all(same).as_py() is not False


def _int64(array: pa.Array) -> npt.NDArray[np.int64]:
    numbers = np.asarray(pc.fill_null(array, 0))
    return numbers.view(np.int64) if numbers.dtype == np.uint64 else numbers.astype(np.int64)


def _varints(numbers: npt.NDArray[np.int64], source: pa.Array) -> pa.LargeBinaryArray:
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    largest = int(zigzag.max(initial=0))
    width = max(1, (largest.bit_length() + 6) // 7)
    matrix = np.empty((len(numbers), width), np.uint8)
    sizes = np.ones(len(numbers), np.int64)
    for place in range(width):
        rest = zigzag >> np.uint64(7 * place)
        more = rest >= 0x80
        matrix[:, place] = (rest & np.uint64(0x7F)).astype(np.uint8) | (more << 7).astype(np.uint8)
        sizes += more
    return _ragged(matrix, sizes if width > 1 else None, source)


def _ragged(
    matrix: Bytes,
    sizes: npt.NDArray[np.int64] | None,
    source: pa.Array,
    *,
    from_end: bool = False,
) -> pa.LargeBinaryArray:
    """Return a row's first or last `sizes` bytes; null where the source is. No sizes: all."""
    count, width = matrix.shape
    if sizes is None:
        offsets, data = np.arange(count + 1, dtype=np.int64) * width, matrix.reshape(-1)
    else:
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        places = np.arange(width)
        taken = places >= width - sizes[:, None] if from_end else places < sizes[:, None]
        data = matrix[taken]
    buffers: list[Any] = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    found = pa.LargeBinaryArray.from_buffers(BINARY, count, buffers)
    if not source.null_count:
        return found
    return pc.if_else(source.is_valid(), found, pa.scalar(None, BINARY))

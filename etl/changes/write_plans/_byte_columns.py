"""Encode columns of bytes, whole Arrow arrays at a time: varints, protobuf fields, TiDB datums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.sql_columns import data_of, join
from sluice.tidb.codec.datum import COMPACT, FLOAT, NIL, UVARINT, VARINT
from sluice.tidb.codec.varint import encode_uvarint

BINARY = pa.large_binary()
_SIGN = np.uint64(1 << 63)


def binary_column(offsets: npt.NDArray[np.int64], data: Any) -> pa.LargeBinaryArray:
    """Return an array over `data` (bytes-like) whose value i is between offsets i and i + 1."""
    return pa.LargeBinaryArray.from_buffers(
        BINARY, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def varints(values: npt.NDArray[Any]) -> pa.LargeBinaryArray:
    """Return unsigned LEB128 of 64-bit numbers.

    Negative ones are in two's complement, as protobuf writes int64.
    """
    numbers = np.ascontiguousarray(values).astype(np.uint64, copy=False)
    limits = np.array([1 << 7 * i for i in range(1, 10)], np.uint64)
    sizes = 1 + np.searchsorted(limits, numbers, side="right")
    width = int(sizes.max(initial=1))
    shifts = (7 * np.arange(width)).astype(np.uint64)
    grid = (numbers[:, None] >> shifts & np.uint64(0x7F)).astype(np.uint8)
    place = np.arange(width)
    grid |= np.where(place < sizes[:, None] - 1, 0x80, 0).astype(np.uint8)
    offsets = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return binary_column(offsets, grid.ravel() if width == 1 else grid[place < sizes[:, None]])


def zigzag(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Map signed numbers to unsigned ones of about the same size."""
    numbers: npt.NDArray[np.uint64] = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return numbers


def lengths(array: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    """Return each value's length in bytes."""
    offsets, _ = data_of(array)
    sizes: npt.NDArray[np.int64] = np.diff(offsets)
    return sizes


def field(tag: bytes, array: pa.LargeBinaryArray, before: bytes = b"") -> pa.LargeBinaryArray:
    """Append each value to `before` as a length-delimited protobuf field; none may be null."""
    return join(before + tag, varints(lengths(array)), array)


def constant_field(tag: bytes, value: bytes) -> bytes:
    """Return one length-delimited protobuf field."""
    return tag + encode_uvarint(len(value)) + value


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a number column, 0 for nulls."""
    values: npt.NDArray[Any] = (pc.fill_null(array, 0) if array.null_count else array).to_numpy(
        zero_copy_only=False
    )
    return values


def compact(array: pa.Array) -> pa.LargeBinaryArray:
    """Encode text or bytes as datums; nulls stay null."""
    value = array.cast(BINARY)
    sizes = lengths(pc.fill_null(value, b"") if value.null_count else value)
    return join(bytes((COMPACT,)), varints(sizes * 2), value)


def datums(array: pa.Array) -> pa.LargeBinaryArray:
    """Return TiDB datums of a column of decoded values.

    Whole numbers are varint or uvarint, floats float, all else bytes; NULL is nil.
    """
    kind = array.type
    if pa.types.is_floating(kind):
        bits = (numbers_of(array).astype(np.float64) + 0.0).view(np.uint64)  # no -0.0
        sortable = np.where(bits & _SIGN != 0, ~bits, bits | _SIGN).astype(">u8")
        result = join(bytes((FLOAT,)), binary_column(np.arange(0, 8 * len(array) + 1, 8), sortable))
    elif pa.types.is_unsigned_integer(kind):
        result = join(bytes((UVARINT,)), varints(numbers_of(array)))
    elif pa.types.is_signed_integer(kind):
        result = join(bytes((VARINT,)), varints(zigzag(numbers_of(array))))
    else:
        result = compact(array)
    return (
        pc.if_else(array.is_valid(), result, pa.scalar(bytes((NIL,)), BINARY))
        if array.null_count
        else result
    )

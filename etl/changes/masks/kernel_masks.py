"""Describe masks as the compiled kernel takes them, and mask texts by it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sluice.etl.changes.masks import kernel
from sluice.etl.changes.masks.date_shift import shift_of
from sluice.etl.changes.masks.kernel.plain import Spec
from sluice.etl.changes.masks.mask import KEYED_KINDS, Mask, constant_value
from sluice.etl.changes.masks.mask_key import mask_key
from sluice.etl.changes.masks.mask_number import INT_BITS
from sluice.etl.changes.masks.mask_text import hash_width
from sluice.tidb.codec.column_value import to_datum
from sluice.tidb.codec.datum import NIL
from sluice.tidb.codec.vectorized import PADDING
from sluice.tidb.schema import Column

_KINDS = {
    "null": kernel.CONSTANT,
    "constant": kernel.CONSTANT,
    "partial": kernel.PARTIAL,
    "hash": kernel.HASH,
    "email": kernel.EMAIL,
    "digits": kernel.DIGITS,
    "shift-days": kernel.SHIFT,
}
_TIMESTAMP, _UNSIGNED = 1, 2
"""What SHIFT has in place of digits: the column's type, and that of the column of persons. NUMBER
has the type of its own."""


_MAX_INT = 2**31 - 1
"""The kernel's numbers are C's `int`; a LONGTEXT is 4,294,967,295 bytes wide."""


def kernel_mask(column: Column, slot: int = 0, by: Column | None = None, by_slot: int = -1) -> Spec:
    """Return the mask of a column whose cells are in `slot`. Raises MaskKeyError.

    `by`, `by_slot`: the column that says by how many days dates are shifted.
    """
    mask = Mask.from_text(column.mask)
    detail = b""
    if mask.kind == "null":
        detail = bytes((NIL,))
    elif mask.kind == "constant":
        detail = to_datum(column, constant_value(mask, column))
    elif mask.kind in KEYED_KINDS:
        detail = mask_key(mask.key)
    argument = int(mask.argument) if mask.kind == "partial" else min(column.flen, _MAX_INT)
    width = hash_width(column) if column.kind == "text" else 0
    if mask.kind == "digits" and column.kind == "int":
        unsigned = _UNSIGNED * column.unsigned
        return slot, kernel.NUMBER, INT_BITS[column.tp], unsigned, by_slot, detail
    if mask.kind == "shift-days":
        most = int(mask.argument)
        argument = shift_of(mask.key, most, None) if by is None else most
        width = _TIMESTAMP * (column.kind == "timestamp")
        width |= _UNSIGNED * (by is not None and by.unsigned)
    return slot, _KINDS[mask.kind], argument, width, by_slot, detail


def masked_texts(column: Column, values: pa.Array) -> pa.LargeBinaryArray | None:
    """Return texts (large_binary) of a column, masked; None if the kernel isn't compiled."""
    if not kernel.IS_COMPILED:
        return None
    validity, offsets, data = values.buffers()
    if values.offset and validity is not None:
        values = pa.concat_arrays([values])
        validity, offsets, data = values.buffers()
    begins = memoryview(offsets)[8 * values.offset : 8 * (values.offset + len(values) + 1)]
    if values.null_count and np.diff(np.frombuffer(begins, np.int64))[~_valid(values)].any():
        return None  # bytes behind a NULL
    data = pa.py_buffer(b"") if data is None else data
    found, ends = used_buffers(*kernel.values(data, begins, PADDING, kernel_mask(column)))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), [validity, ends, found])


def used_buffers(data: bytes, offsets: bytes) -> tuple[pa.Buffer, pa.Buffer]:
    """Return what the kernel has written, with padding, without the room that it didn't need."""
    used = int(np.frombuffer(offsets, np.int64)[-1])
    return pa.py_buffer(data).slice(0, used + PADDING), pa.py_buffer(offsets)


def _valid(values: pa.Array) -> np.ndarray:
    valid: np.ndarray = values.is_valid().to_numpy(zero_copy_only=False)
    return valid

"""Describe masks as the compiled kernel takes them, and mask texts by it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sluice.etl.changes.masks import kernel
from sluice.etl.changes.masks.kernel.plain import Spec
from sluice.etl.changes.masks.mask import KEYED_KINDS, Mask, constant_value
from sluice.etl.changes.masks.mask_key import mask_key
from sluice.etl.changes.masks.mask_text import hash_width
from sluice.tidb.codec.column_value import to_datum
from sluice.tidb.codec.datum import NIL
from sluice.tidb.schema import Column

_KINDS = {
    "null": kernel.CONSTANT,
    "constant": kernel.CONSTANT,
    "partial": kernel.PARTIAL,
    "hash": kernel.HASH,
    "email": kernel.EMAIL,
    "digits": kernel.DIGITS,
}


def kernel_mask(column: Column, slot: int = 0) -> Spec:
    """Return the mask of a column whose cells are in `slot`. Raises MaskKeyError."""
    mask = Mask.from_text(column.mask)
    detail = b""
    if mask.kind == "null":
        detail = bytes((NIL,))
    elif mask.kind == "constant":
        detail = to_datum(column, constant_value(mask, column))
    elif mask.kind in KEYED_KINDS:
        detail = mask_key(mask.key)
    argument = int(mask.argument) if mask.kind == "partial" else column.flen
    width = hash_width(column) if column.kind == "text" else 0
    return slot, _KINDS[mask.kind], argument, width, detail


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
    found, ends = kernel.values(data, begins, 0, kernel_mask(column))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(values), [validity, pa.py_buffer(ends), pa.py_buffer(found)]
    )


def _valid(values: pa.Array) -> np.ndarray:
    valid: np.ndarray = values.is_valid().to_numpy(zero_copy_only=False)
    return valid

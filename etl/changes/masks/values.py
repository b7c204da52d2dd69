"""Mask columns of decoded rows, each different value once."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.masks.kernel_masks import masked_texts
from sluice.etl.changes.masks.mask import Mask, constant_value
from sluice.tidb.schema import Column

__all__ = ["masked_array", "masked_columns"]


def masked_columns(batch: pa.RecordBatch, columns: Iterable[Column]) -> pa.RecordBatch:
    """Return decoded rows with those of the columns masked that have a mask."""
    for column in columns:
        if column.mask:
            at = batch.schema.get_field_index(column.name)
            batch = batch.set_column(at, batch.schema.field(at), masked_array(column, batch[at]))
    return batch


def masked_array(column: Column, values: pa.Array) -> pa.Array:
    """Return values of a column, typed as `arrow_schema` has them, as its mask makes them."""
    mask = Mask.from_text(column.mask)
    if mask.kind == "null":
        return pa.nulls(len(values), values.type)
    if mask.kind == "constant":
        value = pa.scalar(constant_value(mask, column), values.type)
        return pc.if_else(values.is_valid(), value, pa.scalar(None, values.type))
    by_kernel = masked_texts(column, values.view(pa.large_binary()))
    if by_kernel is not None:
        return by_kernel.view(values.type)
    change = mask.of_texts(column)
    coded = values.view(pa.large_binary()).dictionary_encode()
    found = pa.array(map(change, coded.dictionary.to_pylist()), pa.large_binary())
    return found.take(coded.indices).view(values.type)

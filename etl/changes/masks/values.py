"""Mask columns of decoded rows, each different value once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.masks.date_shift import shift_of, shifted_text
from sluice.etl.changes.masks.kernel_masks import masked_texts
from sluice.etl.changes.masks.mask import Mask, constant_value
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column

__all__ = ["by_values", "masked_columns", "person_bytes"]


def masked_columns(batch: pa.RecordBatch, columns: Iterable[Column]) -> pa.RecordBatch:
    """Return decoded rows with those of the columns masked that have a mask."""
    clear, named = batch, {folded(column.source_name): column for column in columns}
    for column in named.values():
        if column.mask:
            at = batch.schema.get_field_index(column.name)
            by = named.get(folded(Mask.from_text(column.mask).by))
            values = _masked_array(column, clear[at], clear[by.name] if by else None)
            batch = batch.set_column(at, batch.schema.field(at), values)
    return batch


def _masked_array(column: Column, values: pa.Array, by: pa.Array | None) -> pa.Array:
    """Return values of a column, typed as `arrow_schema` has them, as its mask makes them.

    `by`: the clear values of the column that says by how many days dates are shifted.
    """
    mask = Mask.from_text(column.mask)
    if mask.kind == "null":
        return pa.nulls(len(values), values.type)
    if mask.kind == "constant":
        value = pa.scalar(constant_value(mask, column), values.type)
        return pc.if_else(values.is_valid(), value, pa.scalar(None, values.type))
    if mask.kind == "shift-days":
        return pa.array(list(_shifted(column, mask, values, by)), values.type)
    if column.kind == "int":
        coded = values.dictionary_encode()
        numbers = map(mask.of_numbers(column), coded.dictionary.to_pylist())
        return pa.array(numbers, values.type).take(coded.indices)
    by_kernel = masked_texts(column, values.view(pa.large_binary()))
    if by_kernel is not None:
        return by_kernel.view(values.type)
    change = mask.of_texts(column)
    coded = values.view(pa.large_binary()).dictionary_encode()
    found = pa.array(map(change, coded.dictionary.to_pylist()), pa.large_binary())
    return found.take(coded.indices).view(values.type)


def _shifted(
    column: Column, mask: Mask, values: pa.Array, by: pa.Array | None
) -> Iterator[str | None]:
    is_timestamp, most = column.kind == "timestamp", int(mask.argument)
    persons: Iterable[object] = repeat(None) if by is None else by_values(by)
    for value, person in zip(values.to_pylist(), persons, strict=False):
        if value is None:
            yield None
        else:
            days = shift_of(mask.key, most, person_bytes(person))
            yield shifted_text(value, days, is_timestamp=is_timestamp)


def by_values(values: pa.Array) -> list[object]:
    """Return clear values of a column that says by how many days dates are shifted."""
    is_text = not pa.types.is_integer(values.type)
    plain: list[object] = (values.view(pa.large_binary()) if is_text else values).to_pylist()
    return plain


def person_bytes(value: object) -> bytes | None:
    """Return what the days depend on: a number's digits, a text's bytes."""
    return value if isinstance(value, bytes | None) else str(value).encode()

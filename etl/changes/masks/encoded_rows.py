"""Mask encoded rows of the relay log: other datums at their places, all else byte for byte."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.masks import kernel
from sluice.etl.changes.masks.date_shift import shift_of, shifted_text
from sluice.etl.changes.masks.kernel.plain import Spec
from sluice.etl.changes.masks.kernel_masks import kernel_mask, used_buffers
from sluice.etl.changes.masks.mask import (
    Mask,
    by_column,
    constant_value,
    has_unmasked,
    unmasked_yet,
)
from sluice.etl.changes.masks.values import by_values, person_bytes
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import kernel as rows_kernel
from sluice.tidb.codec.column_value import to_datum
from sluice.tidb.codec.datum import (
    COMPACT,
    NIL,
    UVARINT,
    VARINT,
    Datum,
    decode_datum,
    encode_datum,
    skip_datum,
)
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.row import HANDLE_ID
from sluice.tidb.codec.times import format_time, pack_time
from sluice.tidb.codec.varint import encode_varint
from sluice.tidb.codec.vectorized import PADDING, Buffer, Ints
from sluice.tidb.columns import STATE_WRITE_ONLY
from sluice.tidb.native_images import RowLayout, find_cells
from sluice.tidb.row_walk import RowWalk, UnsupportedShape
from sluice.tidb.rows import RowDecodeError, decode_deletes, decode_inserts, decode_updates
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_cache import TableCache

__all__ = ["masked_changes", "with_masked_rows"]

_NAMES = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
_BATCH_ROWS = 65_536
_NULL = bytes((NIL,))
_MICROSECOND_DIGITS = 6
DatumMask = Callable[[bytes], bytes]


def with_masked_rows(
    changes: pa.Table, tables: Iterable[tuple[Table, Ints]], *, known_alone: bool = False
) -> pa.Table:
    """Return changes (PART_SCHEMA, one chunk) with the rows of masked tables masked.

    What landing has masked already stays as it is.
    `tables`: each table with the places of its changes. `known_alone`: take out of rows the columns
    that aren't public in their table, unless they are masked. TiDB writes a column before its DDL
    is over, and MODIFY COLUMN writes all values under another number. Raises RowDecodeError,
    MaskKeyError.
    """
    masked = [
        (unmasked_yet(table), places)
        for table, places in tables
        if len(places) and (known_alone or has_unmasked(table))
    ]
    if not masked:
        return changes
    kinds, rows = changes["kind"].to_numpy(), changes["row"].combine_chunks()
    index, pieces, count = np.arange(len(rows)), [], 0
    if sum(len(places) for _, places in masked) < len(rows):
        pieces, count = [rows], len(rows)
    for table, places in masked:
        for first in range(0, len(places), _BATCH_ROWS):
            some = places[first : first + _BATCH_ROWS]
            for at, found in _masked_by_kind(table, kinds, rows, some, known_alone=known_alone):
                pieces.append(found)
                index[at] = count + np.arange(len(at))
                count += len(at)
    at = changes.schema.get_field_index("row")
    found = pa.concat_arrays(pieces).take(pa.array(index))
    return changes.set_column(at, changes.schema.field(at), found).combine_chunks()


def masked_changes(table: Table, changes: pa.Table) -> pa.Table:
    """Return changes (PART_SCHEMA), all of `table`, masked. Raises as `with_masked_rows`."""
    if not has_unmasked(table):
        return changes
    return with_masked_rows(changes.combine_chunks(), [(table, np.arange(changes.num_rows))])


def _masked_by_kind(
    table: Table,
    kinds: npt.NDArray[np.int8],
    rows: pa.LargeBinaryArray,
    places: Ints,
    *,
    known_alone: bool,
) -> Iterator[tuple[Ints, pa.LargeBinaryArray]]:
    """Yield places of rows with the rows, masked: all at once by the kernel, else by kind."""
    known = _known_ids(table) if known_alone else None
    # the kernel takes no row with a column that its table doesn't have
    if known is None or all(column.id in known for column in table.columns):
        found = _masked_by_kernel(table, kinds[places], rows, places)
        if found is not None:
            yield places, found
            return
    for kind in _NAMES:
        own = places[kinds[places] == kind]
        if len(own):
            yield own, _masked_rows(table, kind, rows.take(pa.array(own)), known)


def _known_ids(table: Table) -> frozenset[int]:
    """Return the ids of the columns that are public, or masked."""
    return frozenset({c.id for c in table.columns if c.public or c.mask}) | {HANDLE_ID}


def _kernel_masks(table: Table) -> tuple[RowLayout, tuple[Spec, ...]] | None:
    """Return a layout with slots for masked columns, and their masks, for the kernel."""
    masked = [(c, by_column(table, c)) for c in table.columns if c.mask]
    looked_at = frozenset(c.id for pair in masked for c in pair if c is not None)
    if not masked:  # the rows are walked through for columns that the table doesn't have
        looked_at = frozenset(c.id for c in table.stored_columns[:1])
    layout = RowLayout.for_table(table, looked_at)
    if layout is None:
        return None
    slots = layout.slot_of
    return layout, tuple(
        kernel_mask(column, slots[column.name], by, -1 if by is None else slots[by.name])
        for column, by in masked
    )


_kernel_masks_of = TableCache(_kernel_masks)


def _masked_by_kernel(
    table: Table, kinds: npt.NDArray[np.int8], rows: pa.LargeBinaryArray, places: Ints
) -> pa.LargeBinaryArray | None:
    """Return the rows at places, masked; None if the kernel leaves them to Python."""
    if not (kernel.IS_COMPILED and rows_kernel.IS_COMPILED) or rows.null_count:
        return None
    known = _kernel_masks_of(table)
    cells = None if known is None else find_cells(known[0], kinds, rows, places)
    if known is None or cells is None:
        return None
    layout, masks = known
    if not masks:
        return rows.take(pa.array(places))
    found = kernel.rows(
        cells.data,
        cells.begins,
        cells.places,
        cells.kinds,
        cells.old,
        cells.new,
        layout.slots,
        PADDING,
        masks,
    )
    if found is None:
        return None
    data, offsets = used_buffers(*found)
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(kinds), [None, offsets, data])


def _masked_rows(
    table: Table, kind: int, rows: pa.LargeBinaryArray, known: frozenset[int] | None
) -> pa.LargeBinaryArray:
    """Return encoded rows of one kind, masked: in lock step, or one by one where they differ.

    `known`: ids of the columns that stay; None for all.
    """
    if any(by_column(table, column) for column in table.columns):
        return pa.array(list(_masked_by_others(table, kind, rows, known)), rows.type)
    masks = {column.id: _datum_mask(column) for column in table.columns if column.mask}
    done, found = np.zeros(len(rows), np.bool_), rows
    if known is None or all(column.id in known for column in table.columns):
        with contextlib.suppress(CodecError, UnsupportedShape):
            done, found = _masked_in_lock_step(table, kind, rows, masks)
    others = np.flatnonzero(~done)
    if not len(others):
        return found
    index = np.arange(len(rows))
    index[others] = len(rows) + np.arange(len(others))
    single = [_masked_row(table, kind, rows, number, [masks], known) for number in others.tolist()]
    return pa.concat_arrays([found, pa.array(single, rows.type)]).take(pa.array(index))


def _masked_in_lock_step(
    table: Table, kind: int, rows: pa.LargeBinaryArray, masks: Mapping[int, DatumMask]
) -> tuple[npt.NDArray[np.bool_], pa.LargeBinaryArray]:
    """Return which rows have the form that most have, and these rows masked; else what is no row.

    Raises UnsupportedShape, and CodecError for a value that a mask can't read.
    """
    buffer = Buffer(rows)
    done, spans = RowWalk(table, _NAMES[kind]).spans(buffer, frozenset(masks))
    parts, at = [], buffer.start
    for column_id, begin, end in spans:
        begins, ends = np.where(done, begin, buffer.start), np.where(done, end, buffer.start)
        parts.append(_slices(buffer, at, begins))
        parts.append(_masked_datums(_slices(buffer, begins, ends), masks[column_id]))
        at = ends
    parts.append(_slices(buffer, at, buffer.end))
    return done, pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _slices(buffer: Buffer, begins: Ints, ends: Ints) -> pa.LargeBinaryArray:
    """Return what lies between places that ascend from row to row, an element each."""
    count = len(begins)
    offsets = np.empty(2 * count + 1, np.int64)
    offsets[0] = begins[0] if count else 0
    offsets[1::2], offsets[2::2] = begins, ends
    both = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(buffer.bytes)]
    )
    return both.take(pa.array(np.arange(1, 2 * count, 2)))


def _masked_datums(datums: pa.LargeBinaryArray, change: DatumMask) -> pa.LargeBinaryArray:
    coded = datums.dictionary_encode()
    return pa.array(map(change, coded.dictionary.to_pylist()), datums.type).take(coded.indices)


@functools.lru_cache(maxsize=4096)
def _datum_mask(column: Column) -> DatumMask:
    """Return the function that masks a datum; "" is none, of a row without the column."""
    mask = Mask.from_text(column.mask)
    if mask.kind == "null":
        return lambda datum: datum and _NULL
    if mask.kind == "constant":
        constant = to_datum(column, constant_value(mask, column))
        return lambda datum: constant if datum and datum != _NULL else datum
    if mask.kind == "shift-days":
        return _shift(column, shift_of(mask.key, int(mask.argument), None))
    if column.kind == "int":
        return _number(column, mask.of_numbers(column))
    change = mask.of_texts(column)

    def masked(datum: bytes) -> bytes:
        if not datum or datum == _NULL:
            return datum
        if datum[0] != COMPACT:
            raise CodecError(
                f"column {column.name!r} is text, and has a datum with flag {datum[0]}"
            )
        at = 2  # behind the length, which the walk through the row has checked
        while datum[at - 1] & 0x80:
            at += 1
        value = change(datum[at:])
        return _text_head(len(value)) + value

    return masked


@functools.lru_cache(maxsize=4096)
def _shift(column: Column, days: int) -> DatumMask:
    """Return the function that shifts a moment in its datum by `days`."""

    def shifted(datum: bytes) -> bytes:
        if not datum or datum == _NULL:
            return datum
        packed = decode_datum(datum)[0]
        if packed.flag != UVARINT or not isinstance(packed.value, int):
            raise CodecError(f"column {column.name!r} is a date, and has flag {packed.flag}")
        text = shifted_text(
            format_time(packed.value, _MICROSECOND_DIGITS),
            days,
            is_timestamp=column.kind == "timestamp",
        )
        return encode_datum(Datum(UVARINT, pack_time(text)))

    return shifted


def _number(column: Column, change: Callable[[int], int]) -> DatumMask:
    """Return the function that masks a whole number in its datum."""

    def masked(datum: bytes) -> bytes:
        if not datum or datum == _NULL:
            return datum
        number = decode_datum(datum)[0]
        if number.flag not in (VARINT, UVARINT) or not isinstance(number.value, int):
            raise CodecError(f"column {column.name!r} is a whole number, and has {number.flag}")
        return encode_datum(Datum(number.flag, change(number.value)))

    return masked


def _masked_by_others(
    table: Table, kind: int, rows: pa.LargeBinaryArray, stays: frozenset[int] | None
) -> Iterator[bytes]:
    """Yield rows of one kind, masked, where a column says by how many days dates are shifted.

    Raises RowDecodeError.
    """
    masked = {column.id: column for column in table.columns if column.mask}
    others = {number: by for number, c in masked.items() if (by := by_column(table, c)) is not None}
    # the other columns' values aren't decoded: an error would quote them
    known = {column.id for column in others.values()}
    some = replace(
        table,
        columns=tuple(
            c if c.id in known else replace(c, state=STATE_WRITE_ONLY) for c in table.columns
        ),
    )
    decoded = (
        decode_updates(some, rows)
        if kind == UPDATE
        else [(decode_inserts if kind == INSERT else decode_deletes)(some, rows)]
    )
    persons = {c.name: [by_values(image[c.name]) for image in decoded] for c in others.values()}
    for number in range(len(rows)):
        changes = []
        for image in range(len(decoded)):
            found = {}
            for column_id, column in masked.items():
                if column_id not in others:
                    found[column_id] = _datum_mask(column)
                    continue
                mask = Mask.from_text(column.mask)
                person = person_bytes(persons[others[column_id].name][image][number])
                found[column_id] = _shift(column, shift_of(mask.key, int(mask.argument), person))
            changes.append(found)
        yield _masked_row(table, kind, rows, number, changes, stays)


@functools.lru_cache(maxsize=4096)
def _text_head(length: int) -> bytes:
    """Return what stands in front of a text of this many bytes in its datum."""
    return bytes((COMPACT,)) + encode_varint(length)


def _masked_row(  # noqa: PLR0913 a row, and two ways to change it
    table: Table,
    kind: int,
    rows: pa.LargeBinaryArray,
    number: int,
    of_images: Sequence[Mapping[int, DatumMask]],
    known: frozenset[int] | None,
) -> bytes:
    """Return one row, masked, of any form. Raises RowDecodeError.

    `of_images`: the masks of each image, or of all. `known`: as `_masked_rows`.
    """
    row, seen = rows[number].as_py(), set()
    masks, *others = of_images
    try:
        at = 0
        for _ in range(RowWalk(table, _NAMES[kind]).handles):
            at = skip_datum(row, at)
        found, head = bytearray(row[:at]), at
        if row[at:] == _NULL:  # a row without columns
            return bytes(row)
        while at < len(row):
            column_id, value_at = decode_datum(row, at)
            if others and column_id.value in seen:
                masks, others = others[0], []
            seen.add(column_id.value)
            change = masks.get(column_id.value) if isinstance(column_id.value, int) else None
            try:
                end = skip_datum(row, value_at)
            except CodecError as error:
                if change is None:
                    raise
                # `error` may quote digits, and a traceback shows what it was raised from
                what = f"the value of masked column {column_id.value!r} can't be decoded"
                raise CodecError(what, error.position) from None
            if known is not None and column_id.value not in known:
                at = end
                continue
            datum = row[value_at:end]
            found += row[at:value_at] + (datum if change is None else change(datum))
            at = end
        return bytes(found) if len(found) > head else bytes(found) + _NULL
    except CodecError as error:
        raise RowDecodeError(table, number, error.position, error.what) from error

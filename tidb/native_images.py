"""Images of rows in which the compiled kernel has found the values, in one call a table.

`find_images` gives the old and the new images in the order of the changes. A column becomes an
Arrow array at its first use. Two images of a row are compared by their values' bytes alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.tidb import kernel
from sluice.tidb.codec import row as scalar
from sluice.tidb.codec.column_value import FLAGS
from sluice.tidb.codec.columnar import KERNEL_KINDS, arrow_type, to_arrow
from sluice.tidb.codec.datum import COMPACT, DECIMAL, FLOAT, JSON, NIL, UVARINT, VARINT
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.row import HANDLE_ID, ROWID_NAME
from sluice.tidb.codec.varint import encode_varint
from sluice.tidb.codec.vectorized import PADDING, Buffer, Cells
from sluice.tidb.old_collations import restored_columns
from sluice.tidb.row_images import Ints, RowImages
from sluice.tidb.schema import Column, Table

_ENTRY = struct.Struct("<11sBIiI")  # as `Entry` of the kernel
_ABSENT = 255
_FLAG_BITS = np.uint64(56)
_COMMON_FLAGS = (VARINT, UVARINT, COMPACT, FLOAT, DECIMAL, JSON)
_COMPARED = {
    "int": kernel.NUMBER,
    "year": kernel.NUMBER,
    "bit": kernel.NUMBER,
    "datetime": kernel.MOMENT,
    "timestamp": kernel.MOMENT,
}

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The layout of a table's rows, as the kernel needs it."""

    columns: tuple[Column, ...]
    """The stored columns: a slot each, in this order; behind them the hidden row id of a table that
    has one.
    """
    slots: int
    handle: bytes
    of_inserts: bytes
    of_others: bytes
    compared: bytes
    slot_of: dict[str, int]
    """Slots by column name, in their order."""
    shows_collations: bool
    """Whether an inserted row shows if its cluster has new collations."""

    @classmethod
    def for_table(cls, table: Table, column_ids: frozenset[int] | None = None) -> RowLayout | None:
        """Return the table's layout; None if the kernel doesn't know its types.

        `column_ids`: the only columns that get a slot; None: all, and the hidden row id.
        """
        columns = table.stored_columns
        if column_ids is not None:
            columns = tuple(column for column in columns if column.id in column_ids)
        if not columns or not all(column.kind in KERNEL_KINDS for column in columns):
            return None
        heap = table.handle_kind == "heap"
        has_row_id = heap and column_ids is None
        slots = {column.id: n for n, column in enumerate(columns)} | (
            {HANDLE_ID: len(columns)} if has_row_id else {}
        )
        key = table.handle_column
        try:
            handle = _handle(table, slots)
        except CodecError:  # decoding raises what is wrong
            return None

        def pairs(listed: list[Column]) -> list[bytes]:
            return [
                _entry(
                    slots.get(c.id, -1),
                    FLAGS.get(c.kind, _COMMON_FLAGS) if c.public else _COMMON_FLAGS,
                    c.id,
                )
                for c in listed
            ]

        others = pairs(list(table.columns))
        if heap:
            others.append(_entry(slots.get(HANDLE_ID, -1), (VARINT,), HANDLE_ID))
        return cls(
            columns,
            len(slots),
            handle,
            b"".join(pairs([c for c in table.columns if c is not key])),
            b"".join(others),
            bytes(
                [
                    *(_COMPARED.get(c.kind, kernel.BYTES) for c in columns),
                    *([kernel.UNLOOKED] if has_row_id else []),
                ]
            ),
            {
                name: n
                for n, name in enumerate(
                    (*(c.name for c in columns), *([ROWID_NAME] if has_row_id else []))
                )
            },
            bool(restored_columns(table)),
        )


def _handle(table: Table, slots: dict[int, int]) -> bytes:
    if table.handle_kind == "common":
        return b"".join(
            _entry(slots.get(c.id, -1) if whole else -1, FLAGS.get(c.kind, _COMMON_FLAGS))
            for c, whole in scalar.handle_columns(table)
        )
    key = table.handle_column
    return _entry(slots.get(HANDLE_ID if key is None else key.id, -1), (VARINT,))


def _entry(slot: int, flags: tuple[int, ...], column_id: int | None = None) -> bytes:
    header = b"" if column_id is None else bytes((VARINT,)) + encode_varint(column_id)
    return _ENTRY.pack(header, len(header), sum(1 << flag for flag in flags if flag < 32), slot, 0)


class NativeImages(RowImages):
    """Images of cells that the kernel has found."""

    def __init__(
        self,
        layout: RowLayout,
        data: pa.Buffer,
        cells: bytes,
        count: int,
        decoded: Callable[[], RowImages],
    ) -> None:
        """Hold the images of cells in `data`.

        `decoded`: returns the same images by way of `sluice.tidb.rows`, where a value turns out to
        be none; raises its errors.
        """
        super().__init__(layout.slot_of, count)
        self.layout = layout
        self.data = data
        self.cells = cells
        self._slots = layout.slot_of
        self._decoded = decoded
        self._cells = np.frombuffer(cells, np.uint64).reshape(count, layout.slots, 2)

    def some(self, name: str, rows: Ints) -> pa.Array:
        return super().some(name, rows) if name in self._made else self._array(name, rows)

    def numbers(self, name: str) -> npt.NDArray[np.int64] | None:
        """Return a column of whole numbers, unsigned ones in two's complement.

        None if it has others, or a value is lacking.
        """
        slot = self._slots[name]
        if slot < len(self.layout.columns) and self.layout.columns[slot].kind != "int":
            return None
        if not self.count:
            return _NO_NUMBERS
        flags = self._cells[:, slot, 0] >> _FLAG_BITS
        if not (flags == VARINT).all() and not (
            (flags == UVARINT).all()
            and slot < len(self.layout.columns)
            and self.layout.columns[slot].unsigned
        ):
            return None
        numbers: npt.NDArray[np.int64] = np.ascontiguousarray(self._cells[:, slot, 1]).view(
            np.int64
        )
        return numbers

    def _flags(self, slot: int) -> Bytes:
        """Return the flags of a column's datums, _ABSENT where there is none."""
        flags: Bytes = (self._cells[:, slot, 0] >> _FLAG_BITS).astype(np.uint8)
        return flags

    def alike(
        self, other: NativeImages, own: Ints, others: Ints, names: tuple[str, ...] | None = None
    ) -> Bytes:
        """Compare images at places of `self` with images of the same table at places of `other`.

        Returns kernel.DIFFERENT, SAME or UNSURE for each. `names`: compare these columns only.
        """
        codes = self.layout.compared
        if names is not None:
            codes = bytes(
                code if name in names else kernel.UNLOOKED
                for name, code in zip(self._slots, codes, strict=True)
            )
        found = kernel.alike(self.data, self.cells, other.cells, codes, _int64(own), _int64(others))
        return np.frombuffer(found, np.uint8)

    def _make(self, name: str) -> pa.Array:
        return self._array(name, None)

    def _array(self, name: str, rows: Ints | None) -> pa.Array:
        """Return a column of all rows, or of those at some places."""
        slot = self._slots[name]
        flags, words = self._flags(slot), np.ascontiguousarray(self._cells[:, slot, 1])
        if rows is not None:
            flags, words = flags[rows], words[rows]
        bad = np.zeros(len(flags), np.bool_)
        if name == ROWID_NAME and slot == len(self.layout.columns):
            bad |= flags != VARINT
            array = pa.array(words.view(np.int64))
        else:
            array = self._values(
                slot, flags, words, np.arange(self.count) if rows is None else rows, bad
            )
        if not bad.any():
            return array
        whole = self._decoded()
        return whole[name] if rows is None else whole.some(name, rows)

    def _values(
        self,
        slot: int,
        flags: Bytes,
        words: npt.NDArray[np.uint64],
        rows: Ints,
        bad: npt.NDArray[np.bool_],
    ) -> pa.Array:
        column, count = self.layout.columns[slot], len(flags)
        there = flags != _ABSENT
        if not there.any():
            return to_arrow(column, _NOTHING, None, count, bad)
        kind = column.kind
        if kind in ("text", "binary", "decimal", "json", "float", "double"):
            data, found = kernel.gather(
                self.data, self.cells, self.layout.slots, slot, _int64(rows), PADDING
            )
            offsets = np.frombuffer(found, np.int64)
            if kind in ("text", "binary") and there.all():
                null = flags == NIL
                validity = (
                    pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
                )
                return pa.Array.from_buffers(
                    arrow_type(column), count, [validity, pa.py_buffer(found), pa.py_buffer(data)]
                )
            buffer, start, length = Buffer.wrap(data), offsets[:-1], np.diff(offsets)
        else:
            buffer, start, length = _NOTHING, np.zeros(count, np.int64), np.zeros(count, np.int64)
        null, unsigned = flags == NIL, flags == UVARINT
        cells = Cells(
            None if there.all() else there,
            null if null.any() else None,
            start,
            length,
            words,
            unsigned if unsigned.any() else None,
        )
        try:
            return to_arrow(column, buffer, cells, count, bad)
        except CodecError:  # a wrong default of the column; decoding all of it raises the error
            bad[:] = True
            return None


@dataclass(frozen=True, slots=True)
class FoundCells:
    """What the kernel has found of changes' rows: cells that point into `data`.

    `begins`, `places`, `kinds`: as it was given them. `lacks`: an old image lacks a value.
    """

    data: pa.Buffer
    begins: memoryview
    places: Ints
    kinds: npt.NDArray[np.uint8]
    old: bytes
    new: bytes
    lacks: bool


def find_cells(
    layout: RowLayout, kinds: npt.NDArray[np.int8], rows: pa.LargeBinaryArray, places: Ints
) -> FoundCells | None:
    """Return the cells of changes as `find_images` takes them, None where there are none."""
    _, offsets, data = rows.buffers()
    data = pa.py_buffer(b"") if data is None else data
    begins = memoryview(offsets)[8 * rows.offset : 8 * (rows.offset + len(rows) + 1)]
    at, kinds_of = _int64(places), np.ascontiguousarray(kinds, np.int8).view(np.uint8)
    found = kernel.walk(
        data,
        begins,
        at,
        kinds_of,
        layout.slots,
        layout.handle,
        layout.of_inserts,
        layout.of_others,
    )
    return None if found is None else FoundCells(data, begins, at, kinds_of, *found)


def find_images(
    layout: RowLayout,
    kinds: npt.NDArray[np.int8],
    rows: pa.LargeBinaryArray,
    places: Ints,
    decoded: Callable[[], tuple[RowImages, RowImages]],
) -> tuple[NativeImages, NativeImages, bool] | None:
    """Return (old images, new images, whether an old one lacks a column's value) of changes.

    They are the changes with rows at some places of `rows`, each in the order of the changes that
    have one; `kinds`: 0 insert, 1 update, 2 delete. None if a row isn't written as nearly all are,
    or there is no compiled kernel. `decoded`: returns the images by way of `sluice.tidb.rows`;
    raises its errors.
    """
    if not kernel.IS_COMPILED or rows.null_count or rows.type != pa.large_binary():
        return None
    found = find_cells(layout, kinds, rows, places)
    if found is None:
        return None
    data, old, new, lacks = found.data, found.old, found.new, found.lacks
    return (
        NativeImages(layout, data, old, len(old) // (16 * layout.slots), lambda: decoded()[0]),
        NativeImages(layout, data, new, len(new) // (16 * layout.slots), lambda: decoded()[1]),
        lacks,
    )


def _int64(places: Ints) -> Ints:
    return np.ascontiguousarray(places, np.int64)


_NOTHING = Buffer.wrap(bytes(PADDING))
_NO_NUMBERS = np.zeros(0, np.int64)

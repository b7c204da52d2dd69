"""Walk through the rows of a batch in lock step, and find where their values lie.

All rows are at the same column at the same time; a row that lacks it stays where it is.
"""

from typing import TypeAlias

import numpy as np

from sluice.errors import Signal
from sluice.tidb.codec import decode_datum
from sluice.tidb.codec import row as scalar
from sluice.tidb.codec.column_value import FLAGS
from sluice.tidb.codec.datum import COMPACT, DECIMAL, FLOAT, JSON, UVARINT, VARINT
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.row import HANDLE_ID
from sluice.tidb.codec.varint import encode_varint
from sluice.tidb.codec.vectorized import Buffer, Cells, Cursor, Ints, Mask, Words
from sluice.tidb.schema import Table

_COMMON_FLAGS = (VARINT, UVARINT, COMPACT, FLOAT, DECIMAL, JSON)

# column ids in order, with the flags their datums may have
RowShape: TypeAlias = list[tuple[int, tuple[int, ...]]]


class UnsupportedShape(Signal):
    """The rows of this table can't be walked through in lock step."""


class RowWalk:
    """The ways through rows of one kind ("insert", "delete" or "update") of a table."""

    def __init__(self, table: Table, what: str) -> None:
        self._table = table
        self._what = what
        self._images = 2 if what == "update" else 1

    def table_shape(self) -> RowShape:
        """Return the order in which TiDB writes columns.

        It is that of the table, with those in change last, and the hidden row id at the end.
        """
        key = self._table.handle_column if self._what == "insert" else None
        shape = [
            (c.id, FLAGS.get(c.kind, _COMMON_FLAGS) if c.public else _COMMON_FLAGS)
            for c in self._table.columns
            if c is not key
        ]
        if self._what != "insert" and self._table.handle_kind == "heap":
            shape.append((HANDLE_ID, (VARINT,)))
        return shape

    def shape_of(self, data: bytes) -> RowShape:
        """Return the order of a row that doesn't follow the table's."""
        known = {c.id: FLAGS.get(c.kind, _COMMON_FLAGS) for c in self._table.stored_columns} | {
            HANDLE_ID: (VARINT,)
        }
        try:
            pos = 0
            if self._what == "insert":
                for _ in self._handle():
                    pos = decode_datum(data, pos)[1]
            ids = [column_id for column_id, _, _ in scalar.read_pairs(data, pos)]
        except CodecError:
            return self.table_shape()
        return [(i, known.get(i, _COMMON_FLAGS)) for i in dict.fromkeys(ids)]

    def _handle(self) -> list[tuple[int, bool, tuple[int, ...]]]:
        """Return (column id, handle holds all of it, flags) of each handle datum of an insert."""
        if self._table.handle_kind == "common":
            return [
                (c.id, whole, FLAGS.get(c.kind, _COMMON_FLAGS))
                for c, whole in scalar.handle_columns(self._table)
            ]
        key = self._table.handle_column
        return [(HANDLE_ID if key is None else key.id, True, (VARINT,))]

    def walk(
        self, buffer: Buffer, rows: Ints | None, shape: RowShape
    ) -> tuple[Mask, dict[int, Cells], list[dict[int, Cells]]]:
        """Return which rows follow `shape`, and where values lie, by column id.

        The values are those of the handle, and of each image.
        """
        cursor = Cursor(buffer, rows)
        handle: dict[int, Cells] = {}
        if self._what == "insert":
            try:
                for column_id, whole, flags in self._handle():
                    cells = cursor.datum(flags)
                    if whole:
                        handle[column_id] = cells
            except CodecError as error:
                raise UnsupportedShape from error
            cursor.first = cursor.pos.copy()
        found = [self._take(cursor, shape) for _ in range(self._images)]
        done = cursor.done()
        if self._images == 2:
            for column_id in found[0].keys() | found[1].keys():
                old, new = (self._present(f.get(column_id), len(done)) for f in found)
                done &= old == new
        return done, handle, found

    @property
    def handles(self) -> int:
        """Return the number of datums in front of a row's pairs. Raises CodecError."""
        return len(self._handle()) if self._what == "insert" else 0

    def spans(
        self, buffer: Buffer, column_ids: frozenset[int]
    ) -> tuple[Mask, list[tuple[int, Ints, Ints]]]:
        """Return which rows follow the table's order, and where the datums of some columns lie.

        Each (column id, begins, ends) has a place in `buffer.bytes` for each row, and they are in
        the order of the row: the old image's before the new one's. An empty place: the row has no
        such column.
        """
        cursor = Cursor(buffer)
        if self._what == "insert":
            try:
                for _, _, flags in self._handle():
                    cursor.datum(flags)
            except CodecError as error:
                raise UnsupportedShape from error
            cursor.first = cursor.pos.copy()
        found = []
        for column_id, flags in self.table_shape() * self._images:
            before = cursor.pos
            cells = cursor.column(column_id, flags)
            if cells is not None and column_id in column_ids:
                begins = before + len(encode_varint(column_id)) + 1
                found.append((column_id, np.minimum(begins, cursor.pos), cursor.pos))
        return cursor.done(), found

    @staticmethod
    def _take(cursor: Cursor, shape: RowShape) -> dict[int, Cells]:
        found = {}
        for column_id, flags in shape:
            cells = cursor.column(column_id, flags)
            if cells is not None:
                found[column_id] = cells
        return found

    @staticmethod
    def _present(cells: Cells | None, count: int) -> Mask:
        if cells is None:
            return np.zeros(count, np.bool_)
        return np.ones(count, np.bool_) if cells.present is None else cells.present


def fingerprints(buffer: Buffer, sent: Cells | None, key: Cells | None) -> Words | None:
    """See RowImages: the integer, or the length and the first and the last eight bytes."""
    cells = sent or key
    if cells is None:
        return None
    if cells.value is not None:
        marks = cells.value.copy()
    else:
        length = cells.length.astype(np.uint64)
        bits = np.minimum(length, np.uint64(7)) * np.uint64(8)
        marks = buffer.words[cells.start]
        last = buffer.words[np.maximum(cells.start + cells.length - 8, 0)]
        marks = np.where(
            length < 8,
            marks & ((np.uint64(1) << bits) - np.uint64(1)),
            marks ^ (last << np.uint64(1)),
        )
        marks ^= length << np.uint64(32)
    if cells.null is not None:
        marks[cells.null] = np.uint64(2**63 + 1)
    return marks

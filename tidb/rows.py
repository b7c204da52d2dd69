"""Convert rows of TiDB's binlog into Arrow columns, whole batches at a time.

And back, for tests and load generators. `decode_inserts`, `decode_deletes` and `decode_updates`
take the rows of one table as they are in TableMutation (format: `sluice.tidb.codec.row`) and give a
RecordBatch: one column for each of `table.stored_columns`, named alike, then `_tidb_rowid` (int64)
in tables without a clustered key. Column types and texts: `sluice.tidb.codec.column_value`.

All rows move in lock step through the columns in the order in which TiDB writes them; a row that
lacks a column stays where it is. Rows that aren't at their end then are tried again in the order of
the first of them. The rest, and batches too small to be worth it, goes row by row through
`sluice.tidb.codec.row`, counted in DecodeStats.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import SluiceError
from sluice.tidb.codec import row as scalar
from sluice.tidb.codec.columnar import KERNEL_KINDS, arrow_type, constant, from_values, to_arrow
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.row import HANDLE_ID, ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.codec.vectorized import Buffer, Cells, Ints, Mask
from sluice.tidb.old_collations import is_binary, shown_by_row
from sluice.tidb.row_images import DecodedImages, RawImages, RowImages
from sluice.tidb.row_walk import RowShape, RowWalk, UnsupportedShape, fingerprints
from sluice.tidb.schema import Column, Table

__all__ = [
    "ROWID_NAME",
    "DecodeStats",
    "RowDecodeError",
    "arrow_schema",
    "check_collations",
    "decode_deletes",
    "decode_inserts",
    "decode_updates",
    "encode_delete",
    "encode_insert",
    "encode_update",
    "images_of",
]

SMALL_BATCH = 8
"""Batches up to this many rows are decoded row by row: numpy's cost per operation would be higher.
"""

# orders of columns tried on the rows of a batch before the rest goes row by row
_MAX_ROW_SHAPES = 16


class RowDecodeError(SluiceError, ValueError):
    """A row doesn't match its table.

    `row` counts from 0 in the batch, `offset` in the row's bytes (None when the fault has no
    place).
    """

    hint = "leave the transaction out: `sluice txn skip`"

    def __init__(self, table: Table, row: int, offset: int | None, found: str) -> None:
        where = "" if offset is None else f", byte {offset}"
        super().__init__(
            f"table {table.full_name} (id {table.id}), row {row} of the batch{where}: {found}"
        )
        self.table_id = table.id
        self.row = row
        self.offset = offset
        self.found = found


@dataclass(slots=True)
class DecodeStats:
    """Counts of decoded rows by method, summed over calls.

    `rows`: all (an update counts once). `small`: row by row because the batch was small.
    `fallback`: row by row because the kernels refused them. `json`: JSON values, always decoded
    singly. `absent`: values of old images that the rows didn't hold, or may not have held where it
    wasn't checked; 0 means that every old image had every column.
    """

    rows: int = 0
    small: int = 0
    fallback: int = 0
    json: int = 0
    absent: int = 0


def arrow_schema(table: Table) -> pa.Schema:
    """Return the schema of decoded batches."""
    fields = [pa.field(c.name, arrow_type(c)) for c in table.stored_columns]
    if table.handle_kind == "heap":
        fields.append(pa.field(ROWID_NAME, pa.int64()))
    return pa.schema(fields)


def decode_inserts(
    table: Table,
    rows: pa.LargeBinaryArray,
    stats: DecodeStats | None = None,
    *,
    small_batch: int = SMALL_BATCH,
) -> pa.RecordBatch:
    """Decode inserted rows (handle ++ row) as a batch of `arrow_schema(table)`, in their order.

    Raises RowDecodeError at the first row that is cut off or corrupt. `stats` is added to.
    """
    return _Decoder(table, "insert", stats, small_batch).decode(rows)[0]


def decode_deletes(
    table: Table,
    rows: pa.LargeBinaryArray,
    stats: DecodeStats | None = None,
    *,
    small_batch: int = SMALL_BATCH,
) -> pa.RecordBatch:
    """Decode deleted rows; as `decode_inserts`."""
    return _Decoder(table, "delete", stats, small_batch).decode(rows)[0]


def decode_updates(
    table: Table,
    rows: pa.LargeBinaryArray,
    stats: DecodeStats | None = None,
    *,
    small_batch: int = SMALL_BATCH,
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Decode updated rows (old ++ new) as `(old, new)`; as `decode_inserts`."""
    old, new = _Decoder(table, "update", stats, small_batch).decode(rows)
    return old, new


def images_of(
    what: str, table: Table, rows: pa.LargeBinaryArray, stats: DecodeStats | None = None
) -> tuple[RowImages, ...]:
    """Return the images of rows of one kind ("insert", "delete" or "update"), one or `(old, new)`.

    The rows are as `decode_inserts` and its like take them. A column is decoded at its first use.

    Raises RowDecodeError at the first row that is cut off; for a corrupt value it does so when that
    is used. `stats` is added to, but for JSON.
    """
    return _Decoder(table, what, stats, SMALL_BATCH).images_of(rows)


def check_collations(table: Table, row: bytes) -> None:
    """Check that an inserted row is of the same kind of cluster as its table, by its collations.

    Otherwise it would be read with sort keys for texts, or with keys that compare otherwise. Raises
    RowDecodeError.
    """
    try:
        new = shown_by_row(table, row)
    except CodecError:  # decoding raises it, with the place
        return
    if new is not None and new is is_binary(table):
        held, taken = ("beside its handle", "without") if new else ("in its handle only", "with")
        raise RowDecodeError(
            table,
            0,
            None,
            f"it holds the text of its clustered key {held}, so the upstream has"
            f" {'' if new else 'no '}new"
            f" collations, and was landed as one {taken} them: "
            f'set [upstream] new-collations = "{str(new).lower()}" and land again from the'
            " checkpoint, into an"
            " empty relay log",
        )


class _Decoder:
    def __init__(
        self, table: Table, what: str, stats: DecodeStats | None, small_batch: int
    ) -> None:
        self.table = table
        self.what = what
        self.stats = stats if stats is not None else DecodeStats()
        self.small_batch = small_batch
        self.columns = table.stored_columns
        self.schema = arrow_schema(table)
        self.images = 2 if what == "update" else 1
        self._rows = RowWalk(table, what)

    def images_of(self, rows: pa.Array) -> tuple[RowImages, ...]:
        rows = _large_binary(rows)
        count = len(rows)
        if (
            self.columns
            and count > self.small_batch
            and all(c.kind in KERNEL_KINDS for c in self.columns)
        ):
            self._check(rows)
            try:
                found = self._sent(rows)
            except UnsupportedShape:
                found = None
            if found is not None:
                self.stats.rows += count
                return found
        return tuple(_decoded_images(batch) for batch in self.decode(rows))

    def _sent(self, rows: pa.Array) -> tuple[RowImages, ...] | None:
        """Return images decoded on demand; None if some rows aren't in the table's order."""
        buffer = Buffer(rows)
        done, handle, found = self._rows.walk(buffer, None, self._rows.table_shape())
        if not done.all():
            return None
        if self.what != "insert":
            cells = [half.get(column.id) for half in found for column in self.columns]
            self.stats.absent += len(rows) * sum(
                cell is None or cell.present is not None for cell in cells
            )
        eager = _Decoder(self.table, self.what, None, self.small_batch)
        decoded = functools.cache(lambda: [_decoded_images(batch) for batch in eager.decode(rows)])
        by_name = {column.name: column for column in self.columns}

        def images(number: int) -> RowImages:
            def cells_of(name: str) -> tuple[Cells | None, Cells | None]:
                column_id = by_name[name].id if name in by_name else HANDLE_ID
                return found[number].get(column_id), handle.get(column_id)

            def make(name: str, places: Ints | None) -> pa.Array:
                if places is not None and not len(places):
                    return self.schema.empty_table()[name].combine_chunks()
                cells, key = cells_of(name)
                if places is not None:
                    cells, key = cells and cells.select(places), key and key.select(places)
                bad = np.zeros(len(rows) if places is None else len(places), np.bool_)
                if name in by_name:
                    array = self._array(by_name[name], buffer, cells, key, bad)
                else:
                    array = self._row_ids(cells, key, bad)
                if not bad.any():
                    return array
                whole = decoded()[number]
                return whole[name] if places is None else whole.some(name, places)

            return RawImages(
                self.schema.names,
                len(rows),
                make,
                lambda name: fingerprints(buffer, *cells_of(name)),
            )

        return tuple(images(number) for number in range(self.images))

    def _check(self, rows: pa.Array) -> None:
        if rows.null_count:
            raise RowDecodeError(
                self.table, int(np.flatnonzero(rows.is_null())[0]), None, "the row is null"
            )
        if len(rows) and self.what == "insert":
            check_collations(self.table, rows[0].as_py())

    def decode(self, rows: pa.Array) -> list[pa.RecordBatch]:
        rows = _large_binary(rows)
        self._check(rows)
        count = len(rows)
        self.stats.rows += count
        if count <= self.small_batch or not all(c.kind in KERNEL_KINDS for c in self.columns):
            if count <= self.small_batch:
                self.stats.small += count
            else:
                self.stats.fallback += count
            result = self._scalar(rows, np.arange(count))
        else:
            result = self._vectorised(rows)
        for i, column in enumerate(self.columns):
            if column.kind == "json":
                self.stats.json += sum(len(batch) - batch.column(i).null_count for batch in result)
        return result

    def _vectorised(self, rows: pa.Array) -> list[pa.RecordBatch]:
        buffer = Buffer(rows)
        left: Ints | None = None
        parts: list[tuple[Ints | None, list[pa.RecordBatch]]] = []
        shape = self._rows.table_shape()
        for attempt in range(_MAX_ROW_SHAPES):
            try:
                done, batches = self._pass(buffer, left, shape)
            except UnsupportedShape:
                break
            if left is None and done is None:
                return batches
            everything = np.arange(len(rows)) if left is None else left
            if done is None:
                parts.append((everything, batches))
                left = everything[:0]
                break
            parts.append((everything[done], batches))
            left = everything[~done]
            if not len(left):
                break
            if attempt and not done.any():
                break
            shape = self._rows.shape_of(rows[int(left[0])].as_py())
        rest = np.arange(len(rows)) if left is None else left
        if len(rest):
            self.stats.fallback += len(rest)
            parts.append((rest, self._scalar(rows, rest)))
        order = np.argsort(np.concatenate([r for r, _ in parts if r is not None]))
        return [
            pa.concat_batches([batches[i] for _, batches in parts]).take(pa.array(order))
            for i in range(self.images)
        ]

    def _pass(
        self, buffer: Buffer, rows: Ints | None, shape: RowShape
    ) -> tuple[Mask | None, list[pa.RecordBatch]]:
        """Decode the rows that follow `shape`: which were (None: all), and their batches."""
        done, handle, found = self._rows.walk(buffer, rows, shape)
        if not self.columns and not done.all():
            raise UnsupportedShape
        picked = None if done.all() else np.flatnonzero(done)
        if picked is not None:
            handle = {i: c.select(picked) for i, c in handle.items()}
            found = [{i: c.select(picked) for i, c in half.items()} for half in found]
        count = len(done) if picked is None else len(picked)
        bad = np.zeros(count, np.bool_)
        batches = [self._batch(buffer, half, handle, count, bad) for half in found]
        if bad.any():
            keep = pa.array(~bad)
            batches = [batch.filter(keep) for batch in batches]
            done[np.flatnonzero(done)[bad]] = False
            return done, batches
        return (None if picked is None else done), batches

    def _batch(
        self,
        buffer: Buffer,
        found: dict[int, Cells],
        handle: dict[int, Cells],
        count: int,
        bad: Mask,
    ) -> pa.RecordBatch:
        arrays = [
            self._array(column, buffer, found.get(column.id), handle.get(column.id), bad)
            for column in self.columns
        ]
        if self.what != "insert":
            cells = [found.get(column.id) for column in self.columns]
            self.stats.absent += count * sum(
                cell is None or cell.present is not None for cell in cells
            )
        if self.table.handle_kind == "heap":
            arrays.append(self._row_ids(found.get(HANDLE_ID), handle.get(HANDLE_ID), bad))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(
        self, column: Column, buffer: Buffer, cells: Cells | None, key: Cells | None, bad: Mask
    ) -> pa.Array:
        count = len(bad)
        try:
            if key is None:
                return to_arrow(column, buffer, cells, count, bad)
            if cells is None:
                return to_arrow(column, buffer, key, count, bad)
            if cells.present is None:
                return to_arrow(column, buffer, cells, count, bad)
            present = pa.array(cells.present)
            return pc.if_else(
                present,
                to_arrow(column, buffer, cells, count, bad),
                to_arrow(column, buffer, key, count, bad),
            )
        except CodecError as error:  # the column's default makes no sense
            raise RowDecodeError(self.table, 0, None, error.what) from error

    @staticmethod
    def _row_ids(sent: Cells | None, key: Cells | None, bad: Mask) -> pa.Array:
        """Return the hidden row id, which every row has."""
        cells = key or sent
        if cells is None or cells.value is None:
            bad[:] = True
            return constant(0, pa.int64(), len(bad))
        if cells.present is not None:
            bad |= ~cells.present
        if cells.null is not None:
            bad |= cells.null
        return pa.array(cells.value.view(np.int64))

    def _scalar(self, rows: pa.Array, which: Ints) -> list[pa.RecordBatch]:
        decode: Callable[[Table, bytes], Any] = {
            "insert": scalar.decode_insert,
            "delete": scalar.decode_delete,
            "update": scalar.decode_update,
        }[self.what]
        self.stats.absent += len(which)
        images: list[list[Any]] = [[] for _ in range(self.images)]
        for i in which.tolist():
            try:
                decoded = decode(self.table, rows[i].as_py())
            except CodecError as error:
                raise RowDecodeError(self.table, i, error.position, error.what) from error
            for image, values in zip(
                images, decoded if self.images == 2 else (decoded,), strict=True
            ):
                image.append(values)
        return [self._from_lists(image) for image in images]

    def _from_lists(self, image: list[list[Any]]) -> pa.RecordBatch:
        columns = list(zip(*image, strict=True)) if image else [()] * len(self.schema)
        arrays = [from_values(list(v), t) for v, t in zip(columns, self.schema.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _decoded_images(batch: pa.RecordBatch) -> RowImages:
    return DecodedImages(
        {name: batch.column(i) for i, name in enumerate(batch.schema.names)}, batch.num_rows
    )


def _large_binary(rows: pa.Array | pa.ChunkedArray) -> pa.LargeBinaryArray:
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    return rows if rows.type == pa.large_binary() else rows.cast(pa.large_binary())

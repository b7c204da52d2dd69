"""Format rows that the compiled kernel has found as LOAD DATA's text, without Arrow.

`load_data` defines the text, and writes all that isn't found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats import kernel
from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.formats.load_data import (
    CHUNK_BYTES,
    ESCAPES,
    LoadChunk,
    field_of,
    layout_of,
)
from sluice.etl.changes.formats.sql_columns import data_of
from sluice.tidb.codec.column_value import missing_value
from sluice.tidb.codec.columnar import arrow_type, constant
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.native_images import NativeImages
from sluice.tidb.row_images import Ints
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_cache import TableCache

_NULL = b"\\N"
_ESCAPES = bytearray(256)
for _byte, _spelled in ESCAPES:
    _ESCAPES[_byte[0]] = _spelled[1]
_LETTERS = bytes(_ESCAPES)
_CODES = {
    "bit": kernel.UNSIGNED,
    "year": kernel.YEAR,
    "text": kernel.TEXT,
    "binary": kernel.BINARY,
    "decimal": kernel.FIXED,
    "date": kernel.DATE,
    "datetime": kernel.DATETIME,
    "timestamp": kernel.DATETIME,
    "time": kernel.TIME,
    "enum": kernel.ENUM,
}


@dataclass(frozen=True, slots=True)
class LoadLines:
    """A line a row. `text` has them one behind the other, line i between offsets i and i + 1."""

    layout: LoadLayout
    text: pa.Buffer
    offsets: Ints

    def take(self, rows: Ints) -> LoadLines:
        """Return some of the rows, whose places ascend."""
        if not len(rows) or rows[-1] - rows[0] + 1 == len(rows):
            first = int(rows[0]) if len(rows) else 0
            return LoadLines(self.layout, self.text, self.offsets[first : first + len(rows) + 1])
        whole = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self.offsets) - 1, [None, pa.py_buffer(self.offsets), self.text]
        )
        taken = whole.take(pa.array(rows))
        offsets, _ = data_of(taken)
        return replace(self, text=taken.buffers()[2], offsets=offsets)

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[LoadChunk]:
        """Yield all of them, as `format_load` cuts them."""
        offsets, start = self.offsets, 0
        if 0 < offsets[-1] - offsets[0] <= chunk_bytes:
            payload = self.text.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
            yield LoadChunk(self.layout, payload, len(offsets) - 1)
            return
        while start < len(offsets) - 1:
            end = int(np.searchsorted(offsets, offsets[start] + chunk_bytes, side="right")) - 1
            end = min(max(end, start + 1), len(offsets) - 1)
            payload = self.text.slice(int(offsets[start]), int(offsets[end] - offsets[start]))
            yield LoadChunk(self.layout, payload, end - start)
            start = end


def format_load_native(table: Table, images: NativeImages, rows: Ints) -> LoadLines | None:
    """Return the images at some places, in this order.

    None if they have to be written by `format_load`.

    Raises UnsupportedColumnError and the row codec's errors.
    """
    if not kernel.IS_COMPILED or not len(rows) or (ways := _column_writers(table)) is None:
        return None
    places = np.ascontiguousarray(rows, np.int64)
    found = _format_lines(table, ways, (images.data, images.cells), places, images)
    if found is None:
        return None
    layout, text, offsets = found
    return LoadLines(layout, pa.py_buffer(text), np.frombuffer(offsets, np.int64))


@dataclass(frozen=True, slots=True)
class SmallLoadLines:
    """Lines of so few rows that no array is made for them."""

    layout: LoadLayout
    text: bytes
    offsets: memoryview

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def some(self, first: int, end: int) -> bytes:
        """Return the text of rows that follow one another."""
        return self.text[self.offsets[first] : self.offsets[end]]


def format_small_load_native(
    table: Table, data: Any, cells: bytes, places: bytes, images: NativeImages | None
) -> SmallLoadLines | None:
    """Format the images at some places (int64) as `format_load_native`, for few rows.

    `cells` are the images' in `data`. `images`: the same ones, which a table needs that
    `needs_images`. None, too, for more than a LOAD DATA should have.
    """
    ways = _column_writers(table)
    if not kernel.IS_COMPILED or ways is None:
        return None
    if not places:
        return SmallLoadLines(ways.layout, b"", memoryview(bytes(8)).cast("q"))
    found = _format_lines(table, ways, (data, cells), places, images)
    if found is None or len(found[1]) > CHUNK_BYTES:
        return None
    return SmallLoadLines(found[0], found[1], memoryview(found[2]).cast("q"))


def needs_images(table: Table) -> bool:
    """Return whether some columns are written by way of Arrow."""
    ways = _column_writers(table)
    return ways is None or bool(ways.given)


def _format_lines(
    table: Table,
    ways: _ColumnWriters,
    found: tuple[Any, bytes],
    places: Any,
    images: NativeImages | None,
) -> tuple[LoadLayout, bytes, bytes] | None:
    """Return the lines' layout, text and offsets. `found`: data and cells."""
    specs = ways.specs
    if ways.given:
        assert images is not None
        rows, listed = np.frombuffer(places, np.int64), list(specs)
        for slot in ways.given:
            column = ways.columns[slot]
            field, _ = field_of(table, column, images.some(column.name, rows))
            begins, content = data_of(pc.fill_null(field, _NULL) if field.null_count else field)
            listed[slot] = (kernel.GIVEN, 0, None, None, begins, content)
        specs = tuple(listed)
    lines = kernel.lines(*found, ways.slots, specs, places, _LETTERS)
    if lines is None:
        return None
    text, offsets, hexed = lines
    layout = ways.layout
    if any(hexed):
        layout = layout_of(
            table,
            {c.name: "hex" if hexed[n] else ways.forms[n] for n, c in enumerate(ways.columns)},
        )
    return layout, text, offsets


@dataclass(frozen=True, slots=True)
class _ColumnWriters:
    """The writers of a table's columns."""

    columns: Sequence[Column]
    specs: tuple[kernel.Spec, ...]
    given: tuple[int, ...]
    slots: int
    """Number of an image's cells."""
    forms: tuple[str, ...]
    layout: LoadLayout


def _column_writers_of(table: Table) -> _ColumnWriters | None:
    columns = table.stored_columns
    specs, forms = [], []
    for column in columns:
        kind = column.kind
        code = _CODES.get(kind, kernel.GIVEN)
        if kind == "int":
            code = kernel.UNSIGNED if column.unsigned else kernel.SIGNED
        names = tuple(map(_escaped_text, column.elems)) if code == kernel.ENUM else None
        missing = None if code == kernel.GIVEN else _missing_value(table, column)
        forms.append("bits" if kind == "bit" else "")
        specs.append(
            (
                code,
                column.fsp if code in (kernel.DATETIME, kernel.TIME) else 0,
                missing,
                names,
                None,
                None,
            )
        )
    given = tuple(slot for slot, spec in enumerate(specs) if spec[0] == kernel.GIVEN)
    layout = layout_of(
        table, {column.name: form for column, form in zip(columns, forms, strict=True)}
    )
    # as `sluice.tidb.native_images.RowLayout` has them
    slots = len(columns) + (table.handle_kind == "heap")
    return _ColumnWriters(columns, tuple(specs), given, slots, tuple(forms), layout)


_column_writers = TableCache(_column_writers_of)


def _escaped_text(name: str) -> bytes:
    text = name.encode()
    for byte, escaped in ESCAPES:
        text = text.replace(byte, escaped)
    return text


def _missing_value(table: Table, column: Column) -> bytes | None:
    """Return the field of a row that doesn't hold the column; None where it takes a closer look."""
    if column.origin_default is None:
        return None if column.not_null else _NULL
    try:
        value = missing_value(column)
    except CodecError:  # raised when a row needs it
        return None
    if value is None:
        return _NULL
    if column.kind == "enum" and not value:
        return None
    field, form = field_of(table, column, constant(value, arrow_type(column), 1))
    missing: Any = field[0].as_py()
    return None if form == "hex" else missing

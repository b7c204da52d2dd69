r"""Format Arrow columns as the text that LOAD DATA LOCAL INFILE reads.

One line a row; fields separated by a tab, lines ended by a newline, backslash as the escape
character, ``\N`` for NULL:

    1 <TAB> café <TAB> \N <NEWLINE>

Everything is utf8mb4, so the server converts to each column's character set. Two kinds need more
than text: BIT goes through a user variable (``SET b = CAST(@v0 AS UNSIGNED)``), and binary columns
that hold anything but valid UTF-8 go as hex (``SET c = UNHEX(@v1)``). Columns that the upstream
computes and stores are fields like any other: the server may hold them as plain columns. Where it
computes them itself they are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import SluiceError
from sluice.etl.changes.formats.ddl_text import blank_ended_columns
from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.formats.sql_columns import (
    data_of,
    escape_bytes,
    hex_column,
    invalid_utf8_mask,
    join,
    number_text,
    year_text,
)
from sluice.etl.changes.formats.table_fallbacks import zone_dependent_columns
from sluice.tidb.schema import Column, Table

ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\0", b"\\0"))
"""Bytes that are escaped in a field; the backslash first."""
_PLAIN_TEXT = {"decimal", "date", "datetime", "timestamp", "time"}
_ESCAPED_TEXT = {"text", "enum", "set", "json"}
_SLICE_ROWS = 1 << 16

CHUNK_BYTES = 4 * 2**20


class UnsupportedColumnError(SluiceError, ValueError):
    """A column of a kind, or with values, that can't be written; names table and column."""

    hint = "leave the table out with a [filter], or the transaction: `sluice txn skip`"


@dataclass(frozen=True, slots=True)
class LoadChunk:
    """Rows to be written by one LOAD DATA statement, or as many others as it takes.

    `payload` is its text, `layout` describes its fields, `rows` how many are inside. `warnings`:
    ENUM values without an element, TiDB's index 0. Servers take them in a mode that isn't strict,
    with a warning for each.
    """

    layout: LoadLayout
    payload: pa.Buffer
    rows: int
    warnings: int = 0


def format_load(
    table: Table, columns: Mapping[str, pa.Array], rows: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[LoadChunk]:
    """Yield rows as LOAD DATA chunks of at most `chunk_bytes`, unless a single row is larger.

    `columns`: values by column name, `rows` of them each, in the types that `sluice.tidb.rows`
    decodes to. Raises UnsupportedColumnError.
    """
    for first in range(0, rows, _SLICE_ROWS):
        count = min(_SLICE_ROWS, rows - first)
        some = {name: array.slice(first, count) for name, array in columns.items()}
        broken = _invalid_utf8_rows(table, some)
        if broken is None:
            yield from _format_slice(table, some, chunk_bytes)
            continue
        # Only their own rows are written as bytes: other text is converted to the character set
        # that the column has there.
        for rows_of in (pc.invert(broken), broken):
            yield from _format_slice(
                table, {name: array.filter(rows_of) for name, array in some.items()}, chunk_bytes
            )


def _invalid_utf8_rows(table: Table, columns: Mapping[str, pa.Array]) -> pa.BooleanArray | None:
    """Return the rows with text that isn't utf-8; None if there are none."""
    found = [
        broken
        for c in table.stored_columns
        if c.kind == "text" and (broken := invalid_utf8_mask(columns[c.name])) is not None
    ]
    return functools.reduce(pc.or_, found) if found else None


def _format_slice(
    table: Table, columns: Mapping[str, pa.Array], chunk_bytes: int
) -> Iterator[LoadChunk]:
    fields: list[pa.Array] = []
    forms: dict[str, str] = {}
    for column in table.stored_columns:
        field, forms[column.name] = field_of(table, column, columns[column.name])
        fields.append(field)
    layout = layout_of(table, forms)
    fields[-1] = join(fields[-1], b"\n", null=b"\\N")
    lines = join(*fields, separator=b"\t", null=b"\\N")
    offsets, _ = data_of(lines)
    data = lines.buffers()[2]
    base = int(np.frombuffer(lines.buffers()[1], np.int64, 1, lines.offset * 8)[0])
    empty = _values_without_element(table, columns)
    start = 0
    while start < len(lines):
        end = int(np.searchsorted(offsets, offsets[start] + chunk_bytes, side="right")) - 1
        end = min(max(end, start + 1), len(lines))
        payload = data.slice(base + int(offsets[start]), int(offsets[end] - offsets[start]))
        yield LoadChunk(layout, payload, end - start, int(empty[start:end].sum()))
        start = end


def layout_of(table: Table, forms: Mapping[str, str]) -> LoadLayout:
    """Return a table's layout; `forms`: the form of each column, from `field_of`."""
    generated = tuple(column.name for column in table.stored_columns if column.generated)
    return LoadLayout(
        tuple(forms),
        tuple(name for name, form in forms.items() if form == "bits"),
        tuple(name for name, form in forms.items() if form == "hex"),
        generated,
        tuple(zone_dependent_columns(table)) if generated else (),
        blank_ends=blank_ended_columns(table),
    )


def _values_without_element(table: Table, columns: Mapping[str, pa.Array]) -> np.ndarray:
    """Return how many ENUM values of each row have no element."""
    found = np.zeros(len(next(iter(columns.values()))), np.int64)
    for column in table.stored_columns:
        if column.kind == "enum" and "" not in column.elems:
            found += np.asarray(
                pc.fill_null(pc.equal(columns[column.name], ""), fill_value=False)
            ).astype(np.int64)
    return found


def field_of(
    table: Table, column: Column, array: pa.Array
) -> tuple[pa.Array, Literal["", "bits", "hex"]]:
    """Return a column's field values (large binary), and the list of LoadLayout it belongs to.

    Nulls stay null.
    """
    kind = column.kind
    binary = pa.large_binary()
    if kind == "int":
        return number_text(array).cast(binary), ""
    if kind in ("float", "double"):
        return _clamped_text(column, array).cast(binary), ""
    if kind == "bit":
        return number_text(array).cast(binary), "bits"
    if kind == "year":
        return year_text(array).cast(binary), ""
    if kind in _PLAIN_TEXT:
        return array.cast(binary), ""
    if kind == "text" and invalid_utf8_mask(array) is not None:
        # as bytes of that character set they would be other characters
        if column.charset.startswith("gb"):
            raise UnsupportedColumnError(
                f"{table.full_name}.{column.name}: text in {column.charset} that isn't utf-8 in the"
                " binlog"
            )
        return hex_column(array), "hex"
    if kind in _ESCAPED_TEXT:
        return escape_bytes(array, ESCAPES), ""
    if kind == "binary":
        try:
            array.cast(pa.large_string())
        except pa.ArrowInvalid:
            return hex_column(array), "hex"
        return escape_bytes(array, ESCAPES), ""
    raise UnsupportedColumnError(
        f"{table.full_name}.{column.name}: columns of type number {column.tp} can't be written"
    )


def _clamped_text(column: Column, array: pa.Array) -> pa.LargeStringArray:
    """Return numbers as text.

    The largest of a FLOAT(M,D) or DOUBLE(M,D), 9...9.9...9, is rounded up when it is stored;
    servers take back only what is below.
    """
    text = number_text(array)
    whole = column.flen - column.decimal
    if column.flen <= 0 or column.decimal < 0 or whole > 300:
        return text
    over = pc.greater_equal(pc.abs(array), 10.0**whole)
    if not pc.any(over).as_py():
        return text
    most = f"{'9' * whole or '0'}.{'9' * column.decimal or '0'}"
    return pc.if_else(
        over,
        pc.if_else(
            pc.less(array, 0.0),
            pa.scalar(f"-{most}", pa.large_string()),
            pa.scalar(most, pa.large_string()),
        ),
        text,
    )

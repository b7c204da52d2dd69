"""Rows of a live TiDB as Arrow, as they come over a session that reads at one timestamp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from etl.copy._values import ValueRefused, typed_array
from etl.copy.errors import CopyError
from etl.copy.tidb_session import TidbSession
from etl.formats.sql_text import quote_name, quote_table
from upstream.codec.columnar import arrow_type
from upstream.schema import Column, Table

_PAGE_ROWS = 2_000
_PAGE_BYTES = 8 << 20


def read_rows(session: TidbSession, table: Table, condition: str) -> Iterator[pa.RecordBatch]:
    """The rows of `table` that a condition (SQL) takes, in no order: `table.columns`, in types and texts of
    `upstream.rows.arrow_schema`. Neither side holds more than a page of them. Raises CopyError.
    """
    columns = table.columns
    # A FLOAT is printed with six digits where it is large or small; as a DOUBLE it has all.
    names = [f"{quote_name(c.name)}+0e0" if c.kind == "float" else quote_name(c.name) for c in columns]
    statement = f"SELECT {', '.join(names) or '1'} FROM {quote_table(table)} WHERE {condition}"
    for rows in _pages(session.stream(statement, 100)):
        yield _batch(session, table, columns, rows)


def _batch(
    session: TidbSession, table: Table, columns: Sequence[Column], rows: Sequence[tuple[bytes | None, ...]]
) -> pa.RecordBatch:
    arrays = []
    for number, column in enumerate(columns):
        raw = _array([row[number] for row in rows])
        try:
            arrays.append(typed_array(column, raw))
        except ValueRefused as error:
            raise CopyError(f"TiDB at {session.address.shown}: {table.full_name}.{column.name}: {error.what}") from None
    schema = pa.schema([pa.field(column.name, arrow_type(column)) for column in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pages(few: Iterator[list[tuple[bytes | None, ...]]]) -> Iterator[list[tuple[bytes | None, ...]]]:
    """Rows in pages that are neither many nor large."""
    page: list[tuple[bytes | None, ...]] = []
    size = 0
    for rows in few:
        page += rows
        size += sum(len(value) for row in rows for value in row if value is not None)
        if len(page) >= _PAGE_ROWS or size >= _PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


def _array(values: list[bytes | None]) -> pa.LargeBinaryArray:
    array = pa.array(values, pa.large_binary())
    validity, offsets, data = array.buffers()
    if data is not None:
        return array
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(array), [validity, offsets, pa.py_buffer(b"")])

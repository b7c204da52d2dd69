"""Write INSERT statements with the rows' values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from sluice.etl.changes.formats.sql_text import columns_text, join, literal_column, quote_table
from sluice.tidb.schema import Column, Table

__all__ = ["grouped_rows", "inserts"]

_ROWS_A_STATEMENT = 500
_STATEMENT_BYTES = 1 << 20


def inserts(
    table: Table, columns: Sequence[Column], arrays: Sequence[pa.Array]
) -> Iterator[tuple[int, bytes]]:
    """(rows, statement), some hundred rows a statement.

    `arrays`: values as `literal_column` wants them for these columns; at least one.
    """
    if not len(arrays[0]):
        return
    begin = f"INSERT INTO {quote_table(table)} ({columns_text(columns)}) VALUES\n".encode()
    literals = [
        literal_column(array, column) for array, column in zip(arrays, columns, strict=True)
    ]
    rows = join(b"(", join(*literals, separator=b", "), b")").to_pylist()
    for group in grouped_rows(rows):
        yield len(group), begin + b",\n".join(group)


def grouped_rows(texts: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Group the texts, as many as one statement may have."""
    group: list[bytes] = []
    size = 0
    for text in texts:
        if group and (len(group) == _ROWS_A_STATEMENT or size + len(text) > _STATEMENT_BYTES):
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text)
    if group:
        yield group

"""Read rows of a downstream table, as its server has them and as the upstream has them.

The values come in exactly the types and texts in which they were written there,
`sluice.tidb.rows.arrow_schema`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.etl.changes.formats.key_ranges import SPLITTABLE_KINDS, KeyColumn
from sluice.etl.changes.formats.mysql_rows import RowBlock
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.rules import source_condition
from sluice.etl.copy.block_rows import batch_of, select_statement
from sluice.etl.downstream import MySQLSession
from sluice.etl.history.errors import SnapshotError
from sluice.tidb.codec.binary_json import decode_json, encode_json
from sluice.tidb.schema import WHOLE_COLUMN, Column, Table
from sluice.tidb.table_name import full_name

__all__ = ["DownstreamTable", "page_key", "read_page"]


@dataclass(frozen=True, slots=True)
class DownstreamTable:
    """An upstream table and where its rows are downstream.

    `brings`: the stored generated columns that are read.
    """

    table: Table
    schema: str
    name: str
    brings: frozenset[str] = frozenset()

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return what is read: all that a statement may set, and what it brings."""
        return tuple(
            c for c in self.table.stored_columns if not c.generated or c.name in self.brings
        )

    @property
    def full_name(self) -> str:
        """Return `schema.table` downstream."""
        return full_name(self.schema, self.name)

    @property
    def quoted(self) -> str:
        """Return what stands behind FROM: the table, or this table's living rows in it."""
        gone, source = self.table.gone_column, self.table.source_column
        conditions = [
            *([f"{quote_name(gone)} IS NULL"] if gone else []),
            *([source_condition(source)] if source is not None else []),
        ]
        if conditions:
            return (
                f"(SELECT * FROM {self._quoted_name} WHERE {' AND '.join(conditions)}) AS `sluice"
                " living`"
            )
        return self._quoted_name

    @property
    def _quoted_name(self) -> str:
        return f"{quote_name(self.schema)}.{quote_name(self.name)}"


def page_key(table: Table) -> list[KeyColumn]:
    """Return the columns of the primary key, if rows can be read page by page in its order.

    Else [].
    """
    written = {column.name: column for column in table.writable_columns}
    index = table.primary_index
    prefixes = index is not None and any(length != WHOLE_COLUMN for _, _, length in index.columns)
    columns = [written.get(name) for name in table.source_key]
    if prefixes or any(column is None or column.kind not in SPLITTABLE_KINDS for column in columns):
        return []
    return [KeyColumn.from_column(column) for column in columns if column is not None]


def read_page(
    session: MySQLSession, place: DownstreamTable, condition: str
) -> Iterator[tuple[pa.RecordBatch, RowBlock]]:
    """Yield the rows of a condition: `place.columns`, and the rows as they came.

    The condition is SQL, with what may follow it. Raises SnapshotError, DownstreamError.
    """
    columns = place.columns
    for block in session.blocks(select_statement(columns, place.quoted, condition, rounds=True)):
        try:
            batch = batch_of(columns, block)
        except ValueError as error:
            raise SnapshotError(
                f"{place.full_name} on {session.address}: {error}: it isn't what the upstream could"
                " hold there"
            ) from None
        yield (_with_documents(columns, batch) if session.dialect.has_json_type else batch), block


def _with_documents(columns: Sequence[Column], batch: pa.RecordBatch) -> pa.RecordBatch:
    """Spell JSON as TiDB prints it, where the server has a spelling of its own."""
    for number, column in enumerate(columns):
        if column.kind == "json":
            texts = [
                None if text is None else _document(text)
                for text in batch.column(number).to_pylist()
            ]
            batch = batch.set_column(
                number, batch.schema.field(number), pa.array(texts, pa.large_string())
            )
    return batch


def _document(text: str) -> Any:
    return decode_json(encode_json(text))[0]

"""Rows of a live TiDB as Arrow, as they come over a session that reads at one timestamp."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from sluice.etl.changes.formats.sql_text import quote_table
from sluice.etl.copy.block_rows import batch_of, select_statement
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.tidb_session import TidbSession
from sluice.tidb.schema import Table


def read_rows(session: TidbSession, table: Table, condition: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `table` that a condition (SQL) takes, in no order.

    They have `table.columns`, in types and texts of `sluice.tidb.rows.arrow_schema`. Neither side
    holds more than a few megabytes of them. Raises CopyError.
    """
    columns = table.columns
    for block in session.blocks(select_statement(columns, quote_table(table), condition)):
        try:
            yield batch_of(columns, block)
        except ValueError as error:
            raise CopyError(f"TiDB at {session.address.shown}: {table.full_name}.{error}") from None

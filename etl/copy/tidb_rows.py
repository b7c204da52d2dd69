"""Rows of a live TiDB as Arrow, as they come over a session that reads at one timestamp."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from sluice.etl.changes.formats.sql_text import quote_name, quote_table
from sluice.etl.copy.block_rows import batch_of
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.tidb_session import TidbSession
from sluice.tidb.schema import Table


def read_rows(session: TidbSession, table: Table, condition: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `table` that a condition (SQL) takes, in no order.

    They have `table.columns`, in types and texts of `sluice.tidb.rows.arrow_schema`. Neither side
    holds more than a few megabytes of them. Raises CopyError.
    """
    columns = table.columns
    # A FLOAT is printed with six digits where it is large or small; as a DOUBLE it has all, its
    # zero's sign among them.
    names = [
        f"{quote_name(c.name)}*1e0" if c.kind == "float" else quote_name(c.name) for c in columns
    ]
    statement = f"SELECT {', '.join(names) or '1'} FROM {quote_table(table)} WHERE {condition}"
    for block in session.blocks(statement):
        try:
            yield batch_of(columns, block)
        except ValueError as error:
            raise CopyError(f"TiDB at {session.address.shown}: {table.full_name}.{error}") from None

"""Convert blocks of a server's answer to Arrow, in the types of `sluice.tidb.rows.arrow_schema`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sluice.etl.changes.formats.mysql_rows import RowBlock
from sluice.etl.changes.formats.sql_columns import is_rounded
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.copy._values import ValueRefused, typed_array
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.schema import Column

__all__ = ["batch_of", "select_statement"]


def select_statement(
    columns: Sequence[Column], table: str, condition: str, *, rounds: bool = False
) -> str:
    """Return the statement whose answer `batch_of` converts; `table` is quoted.

    A FLOAT is printed with six digits where it is large or small; as a DOUBLE it has all, its
    zero's sign among them. `rounds`: the server makes a neighbour of what comes to a FLOAT(M,D),
    which the D decimals that it prints hide. A column that is `computed` is read as that.
    """
    names = [
        f"{quote_name(c.name)}*1e0"
        if c.kind == "float" and not (rounds and is_rounded(c))
        else c.computed or quote_name(c.name)
        for c in columns
    ]
    return f"SELECT {', '.join(names) or '1'} FROM {table} WHERE {condition}"


def batch_of(columns: Sequence[Column], block: RowBlock) -> pa.RecordBatch:
    """Return the rows of a block whose first columns are these.

    Raises ValueError, which names the column, for a value that can't be one of it.
    """
    arrays = []
    for number, column in enumerate(columns):
        try:
            arrays.append(typed_array(column, block.column(number)))
        except ValueRefused as error:
            raise ValueError(f"{column.name}: {error.what}") from None
    schema = pa.schema([pa.field(column.name, arrow_type(column)) for column in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

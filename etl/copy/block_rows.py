"""Convert blocks of a server's answer to Arrow, in the types of `sluice.tidb.rows.arrow_schema`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sluice.etl.changes.formats.mysql_rows import RowBlock
from sluice.etl.copy._values import ValueRefused, typed_array
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.schema import Column

__all__ = ["batch_of"]


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

"""Convert rows of a past table to the lake's types.

Runs in Spark's Python workers: nothing is imported here that the client alone needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sluice.etl.history.as_of.aggregations import from_ipc
from sluice.etl.history.lake import LakeColumn, lake_columns
from sluice.tidb.schema import Table

__all__ = ["TypedRows", "typed_columns"]


def typed_columns(table: Table, left_out: tuple[str, ...] = ()) -> list[LakeColumn]:
    """Return the columns that users know, each under its own name and with its type in the lake."""
    known = {column.name for column in table.stored_columns} - set(left_out)
    return [column for column in lake_columns(table) if column.source in known]


@dataclass(frozen=True, slots=True)
class TypedRows:
    """Results of `sluice.etl.history.as_of.aggregations.CollectRows` of one table become its rows.

    What a type can't hold is null.
    """

    table: Table
    left_out: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = typed_columns(self.table, self.left_out)
        schema = pa.schema([pa.field(column.source, column.type) for column in columns])
        for batch in batches:
            for payload in batch.column("payload"):
                for rows in from_ipc(payload.as_buffer()):
                    values = [column.convert(rows.column(column.source))[0] for column in columns]
                    yield pa.RecordBatch.from_arrays(
                        [
                            value.cast(field.type)
                            for value, field in zip(values, schema, strict=True)
                        ],
                        schema=schema,
                    )

"""Chunks become the text that LOAD DATA reads, or messages of a topic, in Spark's workers.

What comes back is one Arrow row a LOAD statement: `layout` as JSON
(`sluice.etl.changes.formats.load_data`), `rows` inside, `warnings` that the server will give for
them, the text. Of messages `layout` has the schemas (`schemas_of`), and the payload is frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.etl.changes.formats.load_data import format_load
from sluice.etl.changes.formats.sql_columns import data_of
from sluice.etl.changes.masks import masked_columns
from sluice.etl.changes.messages import MessageFormat
from sluice.etl.changes.rules import with_history_columns, without_source_column
from sluice.etl.changes.steps import MessageSchema
from sluice.etl.changes.write_plans.history_versions import version_values
from sluice.etl.changes.write_plans.kafka_messages import snapshot_rows
from sluice.etl.copy.selected_rows import selected_rows
from sluice.etl.copy.source import RowSource, SourceChunk
from sluice.etl.copy.sources import open_source
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.schema import Table

LOAD_SCHEMA = pa.schema(
    [
        ("layout", pa.string()),
        ("rows", pa.int64()),
        ("warnings", pa.int64()),
        ("payload", pa.binary()),
    ]
)


def make_loads(
    spec: Mapping[str, Any], chunk: SourceChunk, table: Table
) -> Iterator[pa.RecordBatch]:
    """Yield the loads of a chunk, in LOAD_SCHEMA, one a batch. Raises CopyError, OSError."""
    source = open_source(spec)
    return loads_of(table, _rows(source, chunk, table), since_ts=source.position)


def _rows(source: RowSource, chunk: SourceChunk, table: Table) -> Iterator[pa.RecordBatch]:
    """Return the rows of a chunk that row rules select; `table`: by its upstream name."""
    batches = source.read(chunk, without_source_column(table))
    return selected_rows(batches, table, chunk.where) if chunk.where else batches


def loads_of(
    table: Table, batches: Iterable[pa.RecordBatch], since_ts: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the loads of rows with some of the table's columns, in LOAD_SCHEMA, one a batch.

    Columns with a mask are masked. The column that names the source needn't be among them. With
    `since_ts` (TSO) rows of a table whose versions are kept are open versions that this commit
    made.
    """
    for clear in batches:
        batch = masked_columns(clear, table.columns)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if (source := table.source_column) is not None:
            columns[source.name] = pa.repeat(source.origin_default, batch.num_rows).cast(
                arrow_type(source)
            )
        brought = replace(
            table, columns=tuple(c for c in table.stored_columns if c.name in columns)
        )
        if table.history and since_ts:
            stamps = np.full(batch.num_rows, since_ts, np.int64)
            columns |= version_values(table, stamps, stamps, np.zeros(batch.num_rows, bool))
            brought = with_history_columns(brought)
        for load in format_load(brought, columns, batch.num_rows):
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([json.dumps(load.layout.to_json())]),
                    pa.array([load.rows]),
                    pa.array([load.warnings]),
                    _single_value(load.payload),
                ],
                schema=LOAD_SCHEMA,
            )


def make_messages(
    spec: Mapping[str, Any], chunk: SourceChunk, table: Table, options: MessageFormat
) -> Iterator[pa.RecordBatch]:
    """Yield a chunk's rows as messages, in LOAD_SCHEMA. Raises CopyError, ChangeError, OSError.

    `table`: by its name in the topics; its columns are the upstream's.
    """
    source = open_source(spec)
    upstream = replace(table, schema_name=chunk.schema, name=chunk.table)
    for clear in _rows(source, chunk, upstream):
        batch = masked_columns(clear, upstream.columns)
        schemas, frames = snapshot_rows(table, batch, source.position, options)
        layout, (_, content) = json.dumps({"schemas": schemas}), data_of(frames)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([layout]), pa.array([batch.num_rows]), pa.array([0]),
                _single_value(pa.py_buffer(content.data)),
            ],
            schema=LOAD_SCHEMA,
        )  # fmt: skip


def schemas_of(layout: str) -> list[MessageSchema]:
    """Return the schemas that the messages of a load refer to, from its `layout`."""
    return [MessageSchema(*values) for values in json.loads(layout)["schemas"]]


def _single_value(payload: pa.Buffer) -> pa.BinaryArray:
    """Return an array of one value, without a copy."""
    return pa.BinaryArray.from_buffers(
        pa.binary(), 1, [None, pa.array([0, payload.size], pa.int32()).buffers()[1], payload]
    )

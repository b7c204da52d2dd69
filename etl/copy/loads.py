"""Chunks become the text that LOAD DATA reads, in Spark's workers or here.

What comes back is one Arrow row a LOAD statement: `layout` as JSON (`etl.formats.load_data`), `rows` inside, `warnings`
that the server will give for them, the text. Workers get the source, the chunk and the table; no credentials of the
downstream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from etl.copy.plan import columns_to_load
from etl.copy.source import Chunk
from etl.copy.sources import open_source
from etl.formats.load_data import format_load
from etl.settings import Settings
from etl.spark import session as spark_session
from etl.spark.frame import TaskFrame
from etl.spark.job import stream
from etl.spark.worker import freeze_loaded
from upstream.schema import Table

LOAD_SCHEMA = pa.schema(
    [("layout", pa.string()), ("rows", pa.int64()), ("warnings", pa.int64()), ("payload", pa.binary())]
)
_TASKS = pa.schema([("task", pa.string())])
_TIMEOUT_S = 3600.0

MakeLoads = Callable[[Chunk, Table], Iterator[pa.RecordBatch]]
"""A chunk of an upstream table to record batches in LOAD_SCHEMA. Raises CopyError, WorkerError, Spark's errors."""


def make_loads(spec: Mapping[str, Any], chunk: Chunk, table: Table) -> Iterator[pa.RecordBatch]:
    """The loads of a chunk, in LOAD_SCHEMA, one a batch. Raises CopyError, OSError."""
    target = columns_to_load(table)
    for batch in open_source(spec).read(chunk, table):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for load in format_load(target, columns, batch.num_rows):
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([json.dumps(load.layout)]),
                    pa.array([load.rows]),
                    pa.array([load.warnings]),
                    _one(load.payload),
                ],
                schema=LOAD_SCHEMA,
            )


def _one(payload: pa.Buffer) -> pa.BinaryArray:
    """One value, without a copy."""
    return pa.BinaryArray.from_buffers(
        pa.binary(), 1, [None, pa.array([0, payload.size], pa.int32()).buffers()[1], payload]
    )


@dataclass(frozen=True, slots=True)
class _CopyChunks:
    """Runs in Spark's Python workers."""

    spec: dict[str, Any]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column(0).to_pylist():
                task = json.loads(text)
                yield from make_loads(self.spec, Chunk.from_json(task["chunk"]), Table.from_json(task["table"]))
        freeze_loaded()


class SparkLoads:
    """Makes loads on the settings' Spark Connect server, a job a chunk; called by several threads side by side."""

    def __init__(self, settings: Settings, spec: Mapping[str, Any]) -> None:
        self._spark: Any = spark_session.connect(settings.spark.remote, "copy", settings.relay.url)
        self._frame = TaskFrame(self._spark, _CopyChunks(dict(spec)), _TASKS, LOAD_SCHEMA)

    def __call__(self, chunk: Chunk, table: Table) -> Iterator[pa.RecordBatch]:
        task = json.dumps({"chunk": chunk.to_json(), "table": table.to_json()})
        for batch in stream(self._spark, self._frame.of(pa.table({"task": [task]})), _TIMEOUT_S):
            yield batch.cast(LOAD_SCHEMA)

    def close(self) -> None:
        """Close the connection; the session stays on the server."""
        spark_session.close(self._spark)

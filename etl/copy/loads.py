"""Chunks become the text that LOAD DATA reads, in Spark's workers or here.

What comes back is one Arrow row a LOAD statement: `layout` as JSON (`etl.formats.load_data`), `rows` inside, `warnings`
that the server will give for them, the text. Workers get the source, the chunk and the table; no credentials of the
downstream.
"""

from __future__ import annotations

import json
import threading
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
from etl.spark.errors import SparkError, WorkerError, told_to_client
from etl.spark.frame import TaskFrame
from etl.spark.job import stream
from etl.spark.judge import Judge
from etl.spark.worker import freeze_loaded
from upstream.schema import Table

LOAD_SCHEMA = pa.schema(
    [("layout", pa.string()), ("rows", pa.int64()), ("warnings", pa.int64()), ("payload", pa.binary())]
)
_TASKS = pa.schema([("task", pa.string())])
_TIMEOUT_S = 3600.0

MakeLoads = Callable[[Chunk, Table], Iterator[pa.RecordBatch]]
"""A chunk of an upstream table to record batches in LOAD_SCHEMA. Raises CopyError, SparkError."""


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
        with told_to_client():
            for batch in batches:
                for text in batch.column(0).to_pylist():
                    task = json.loads(text)
                    yield from make_loads(self.spec, Chunk.from_json(task["chunk"]), Table.from_json(task["table"]))
        freeze_loaded()


class SparkLoads:
    """Makes loads on the settings' Spark Connect server, a job a chunk; called by several threads side by side.
    Connects at the first use, and anew after the connection was lost.
    """

    def __init__(self, settings: Settings, spec: Mapping[str, Any]) -> None:
        self._place = settings.spark.remote, "copy", settings.relay.url
        self._function = _CopyChunks(dict(spec))
        self._lock = threading.Lock()
        self._connection: tuple[Any, TaskFrame] | None = None
        self._judge = Judge()

    def __call__(self, chunk: Chunk, table: Table) -> Iterator[pa.RecordBatch]:
        spark, frame = self._connected()
        task = pa.table({"task": [json.dumps({"chunk": chunk.to_json(), "table": table.to_json()})]})
        try:
            with self._judge.telling():
                for batch in stream(spark, frame.of(task), _TIMEOUT_S):
                    yield batch.cast(LOAD_SCHEMA)
        except SparkError as error:
            if error.transient and not isinstance(error, WorkerError):
                self._drop(spark)
            raise

    def close(self) -> None:
        """Close the connection; the session stays on the server."""
        if self._connection is not None:
            self._drop(self._connection[0])

    def _connected(self) -> tuple[Any, TaskFrame]:
        with self._lock:
            if self._connection is None:
                spark = spark_session.connect(*self._place)
                self._connection = spark, TaskFrame(spark, self._function, _TASKS, LOAD_SCHEMA)
            return self._connection

    def _drop(self, spark: Any) -> None:
        """Close a connection, unless another thread has done so and connected anew."""
        with self._lock:
            if self._connection is not None and self._connection[0] is spark:
                self._connection = None
                spark_session.close(spark)

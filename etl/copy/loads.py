"""Loads made on Spark, a job a chunk."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from etl.copy.source import Chunk
from etl.copy.worker import LOAD_SCHEMA, CopyChunks
from etl.spark import session as spark_session
from etl.spark.errors import SparkError, WorkerError
from etl.spark.frame import TaskFrame
from etl.spark.job import stream
from etl.spark.judge import Judge
from upstream.schema import Table

_TASKS = pa.schema([("task", pa.string())])
_TIMEOUT_S = 3600.0

MakeLoads = Callable[[Chunk, Table], Iterator[pa.RecordBatch]]
"""A chunk of an upstream table to record batches in LOAD_SCHEMA. Raises CopyError, SparkError."""


class SparkLoads:
    """Makes loads on a Spark Connect server, a job a chunk; called by several threads side by side.
    Connects at the first use, and anew after the connection was lost.
    """

    def __init__(self, remote: str, relay_url: str, spec: Mapping[str, Any]) -> None:
        """`remote`: the Spark Connect server. `spec`: the source's, see `etl.copy.sources`."""
        self._place = remote, "copy", relay_url
        self._function = CopyChunks(dict(spec))
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

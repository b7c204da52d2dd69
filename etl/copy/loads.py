"""Loads made on Spark, a job a chunk; they come as files."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from etl.copy.chunk_files import CopyChunks
from etl.copy.load_files import FILE_SCHEMA, read_file, remove_files
from etl.copy.source import Chunk
from etl.spark import session as spark_session
from etl.spark.errors import SparkError, WorkerError
from etl.spark.frame import TaskFrame
from etl.spark.job import stream
from etl.spark.judge import Judge
from relay.appointments import Load
from relay.storage import open_storage
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
        self._storage = open_storage(relay_url)
        self._function = CopyChunks(dict(spec), relay_url)
        self._lock = threading.Lock()
        self._connection: tuple[Any, TaskFrame] | None = None
        self._judge = Judge()

    def __call__(self, chunk: Chunk, table: Table) -> Iterator[pa.RecordBatch]:
        prefix = secrets.token_hex(6)
        try:
            for load in self.files(chunk, table, prefix):
                batch = read_file(self._storage, load)
                self._storage.remove(load.path)
                yield batch
        except BaseException:
            with contextlib.suppress(OSError):
                remove_files(self._storage, prefix)
            raise

    def files(self, chunk: Chunk, table: Table, prefix: str) -> list[Load]:
        """The loads of a chunk as files whose names begin with `prefix`. Raises SparkError, CopyError."""
        spark, frame = self._connected()
        document = {"chunk": chunk.to_json(), "table": table.to_json(), "prefix": prefix}
        task = pa.table({"task": [json.dumps(document)]})
        try:
            with self._judge.telling():
                found = list(stream(spark, frame.of(task), _TIMEOUT_S))
        except SparkError as error:
            if error.transient and not isinstance(error, WorkerError):
                self._drop(spark)
            raise
        return [Load(**json.loads(text)) for batch in found for text in batch.column(0).to_pylist()]

    def discard(self, loads: Iterable[Load]) -> None:
        """Remove files that nobody is going to read. Raises OSError."""
        for load in loads:
            self._storage.remove(load.path)

    def connect(self) -> None:
        """Raises SparkUnavailableError after a minute without an answer: better before anything is written."""
        self._connected()

    def close(self) -> None:
        """Close the connection; the session stays on the server."""
        if self._connection is not None:
            self._drop(self._connection[0])

    def _connected(self) -> tuple[Any, TaskFrame]:
        with self._lock:
            if self._connection is None:
                spark = spark_session.connect(*self._place)
                self._connection = spark, TaskFrame(spark, self._function, _TASKS, FILE_SCHEMA)
            return self._connection

    def _drop(self, spark: Any) -> None:
        """Close a connection, unless another thread has done so and connected anew."""
        with self._lock:
            if self._connection is not None and self._connection[0] is spark:
                self._connection = None
                spark_session.close(spark)

"""Chunks read on Spark, a job each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from etl.backfill.reader import ORDER_SCHEMA, READ_SCHEMA, ChunkRead, ReadChunks, ReadOrder
from etl.copy.tidb_session import TidbAddress
from etl.spark import session as spark_session
from etl.spark.errors import SparkError, WorkerError
from etl.spark.frame import TaskFrame
from etl.spark.job import collect
from etl.spark.judge import Judge

_TIMEOUT_S = 600.0

ReadChunk = Callable[[ReadOrder], ChunkRead]
"""Raises CopyError, SparkError, OSError."""


class SparkReads:
    """Reads chunks on a Spark Connect server. Connects at the first use, and anew after the connection was lost."""

    def __init__(self, remote: str, relay_url: str, address: TidbAddress) -> None:
        """`remote`: the Spark Connect server."""
        self._place = remote, "backfill", relay_url
        self._function = ReadChunks(address.to_json(), relay_url)
        self._lock = threading.Lock()
        self._connection: tuple[Any, TaskFrame] | None = None
        self._judge = Judge()

    def __call__(self, order: ReadOrder) -> ChunkRead:
        spark, frame = self._connected()
        try:
            with self._judge.telling():
                found = collect(spark, frame.of(pa.table({"order": [order.to_text()]})), _TIMEOUT_S)
        except SparkError as error:
            if error.transient and not isinstance(error, WorkerError):
                self.close()
            raise
        return ChunkRead.parse(found.column(0)[0].as_py())

    def close(self) -> None:
        """Close the connection; the session stays on the server."""
        with self._lock:
            if self._connection is not None:
                spark_session.close(self._connection[0])
                self._connection = None

    def _connected(self) -> tuple[Any, TaskFrame]:
        with self._lock:
            if self._connection is None:
                spark = spark_session.connect(*self._place)
                self._connection = spark, TaskFrame(spark, self._function, ORDER_SCHEMA, READ_SCHEMA)
            return self._connection

"""Rows through one function in Spark's Python workers, a job a call, whose results are texts.

Called by several threads side by side.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from sluice.etl.spark import session as spark_session
from sluice.etl.spark.error_translation import ErrorTranslator
from sluice.etl.spark.errors import SparkError, WorkerError
from sluice.etl.spark.job import TaskFrame, stream
from sluice.etl.spark.session_target import SessionTarget
from sluice.etl.spark.worker_tuning import TEXTS

__all__ = ["JobCalls", "WorkerFunction"]


WorkerFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From rows to texts, in a Spark worker."""


class JobCalls:
    """Calls on a Spark Connect server.

    Connects at the first use, and again after the connection was lost.
    """

    def __init__(
        self,
        place: SessionTarget,
        function: WorkerFunction,
        timeout_s: float,
        tasks: pa.Schema = TEXTS,
    ) -> None:
        """Prepare calls of `function`, which maps batches in the schema `tasks` to TEXTS."""
        self._place = place
        self._function = function
        self._timeout_s = timeout_s
        self._tasks = tasks
        self._lock = threading.Lock()
        self._connection: tuple[Any, TaskFrame] | None = None
        self._errors = ErrorTranslator()
        self._tag = f"calls-{secrets.token_hex(6)}"

    def __call__(self, texts: Sequence[str], label: str = "") -> list[str]:
        """Return the function's results for the texts, in no order. Raises SparkError.

        `label`: a tag that Spark shows with the job.
        """
        return self.map(pa.table({"text": list(texts)}), label)

    def map(self, tasks: pa.Table, label: str = "") -> list[str]:
        """Return the function's results for rows, in no order, as a call does."""
        spark, frame = self._connected()
        try:
            with self._errors.translating():
                found = list(stream(spark, frame.of(tasks), self._timeout_s, (self._tag, label)))
        except SparkError as error:
            if error.transient and not isinstance(error, WorkerError):
                self._drop(spark)
            raise
        return [text for batch in found for text in batch.column(0).to_pylist()]

    def connect(self) -> None:
        """Connect. Raises SparkUnavailableError after a minute without an answer."""
        self._connected()

    def interrupt(self) -> None:
        """End the calls that are under way."""
        if (connection := self._connection) is not None:
            with contextlib.suppress(Exception):
                connection[0].interruptTag(self._tag)

    def close(self) -> None:
        """Close the connection; the session stays on the server."""
        if self._connection is not None:
            self._drop(self._connection[0])

    def _connected(self) -> tuple[Any, TaskFrame]:
        with self._lock:
            if self._connection is None:
                spark = spark_session.connect(self._place)
                self._connection = spark, TaskFrame(spark, self._function, self._tasks, TEXTS)
            return self._connection

    def _drop(self, spark: Any) -> None:
        """Close a connection, unless another thread has done so and connected again."""
        with self._lock:
            if self._connection is not None and self._connection[0] is spark:
                self._connection = None
                spark_session.close(spark)

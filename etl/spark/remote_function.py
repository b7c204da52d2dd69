"""A function in Spark's Python workers, called again and again.

Calls go to persistent workers, one or several, and are jobs where no worker comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from sluice.etl.settings import Spark
from sluice.etl.spark import reachability
from sluice.etl.spark.error_translation import ErrorTranslator
from sluice.etl.spark.errors import SlowWorkerError
from sluice.etl.spark.job import TaskFrame, stream
from sluice.etl.spark.persistent_worker import PersistentWorker
from sluice.etl.spark.worker_pool import NoWorkerAvailable, WorkerPool

__all__ = ["RemoteFunction"]

_JOB_FALLBACK_S = 60.0
"""How long calls are jobs after a persistent worker was too slow.

A job may take its time, a worker sends a heartbeat each second.
"""


class RemoteFunction:
    """Threads may call at once."""

    def __init__(
        self,
        session: tuple[Any, Spark],
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schemas: tuple[pa.Schema, pa.Schema],
        errors: ErrorTranslator,
    ) -> None:
        """Create the remote function; `session`: of `sluice.etl.spark.session`, on this server.

        `function` maps batches in the first of the schemas to batches in the second. `errors`
        outlives the session.
        """
        spark, server = session
        self._spark = spark
        self._server = server
        self._errors = errors
        self._frame = TaskFrame(spark, function, *schemas)
        self._pool = WorkerPool(lambda: PersistentWorker(spark, server, function, schemas))
        self._fallback_until = 0.0
        """Until this time (monotonic clock, s) all calls are jobs."""

    def __call__(
        self,
        tasks: pa.Table,
        timeout_s: float,
        *,
        alone: bool,
        core_timeout_s: float | None = None,
        label: str = "",
    ) -> Iterator[pa.RecordBatch]:
        """Yield the function's results for these rows, as they come.

        `alone`: one worker takes all of them, one call at a time; otherwise rows are mapped side by
        side. After `timeout_s` without a message the call is given up. Raises SparkError, which a
        WorkerError is too; SparkUnavailableError: the server was away before any worker had begun;
        SlowWorkerError: the same call is a job next time; NoFreeCore: a call `alone` found no core
        for its worker within `core_timeout_s`, and nothing of it has begun. `label`: a tag
        that Spark shows with a call that is a job.
        """
        with self._errors.translating():
            try:
                if time.monotonic() >= self._fallback_until:
                    if alone:
                        yield from self._pool.on_one(tasks, timeout_s, core_timeout_s)
                    else:
                        yield from self._pool(tasks, timeout_s)
                    return
            except NoWorkerAvailable:
                pass
            except SlowWorkerError:
                self._fallback_until = time.monotonic() + _JOB_FALLBACK_S
                raise
            reachability.check_reachable(self._server)
            yield from stream(self._spark, self._frame.of(tasks), timeout_s, (label,))

    def warm_up(self) -> None:
        """Start the worker for calls `alone`, if one can start.

        It starts Python, and loads what it needs.
        """
        self._pool.warm_up()

    def release(self) -> None:
        """Give the persistent workers' cores back, also during calls."""
        self._pool.release()

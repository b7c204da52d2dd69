"""Prepare windows on Spark: a worker gets them as one row of JSON, and returns steps as Arrow.

Spark finds the function by this module's path. So what only the client needs is imported on first
use: no session, no connection to the downstream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare
from sluice.etl.changes.steps import STEP_SCHEMA
from sluice.etl.spark.worker_tuning import column_values, worker_function

if TYPE_CHECKING:
    from sluice.etl.spark.session_target import SessionTarget

_CONNECT_TIMEOUT_S = 60.0
_JOB_TIMEOUT_S = 600.0
_MAX_LOCAL_CHANGES = 20_000
"""Limits local work besides bytes: rows that compress well are more work than bytes show."""
_TASK_SCHEMA = pa.schema([("windows", pa.string())])


@dataclass(frozen=True, slots=True)
class PrepareWindows:
    """Turn rows, each a batch of windows as JSON, into record batches in STEP_SCHEMA."""

    relay_url: str
    options: PrepareOptions

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for text in column_values(batches):
            yield from prepare(self.relay_url, BatchPayload.from_text(text), self.options)


class SparkPreparer:
    """Prepare windows of a relay log on Spark, small ones in this process while Spark is away.

    Connects at the first use, and runs one job at a time.
    """

    def __init__(self, place: SessionTarget, options: PrepareOptions) -> None:
        from sluice.etl.spark.job import window_range
        from sluice.etl.spark.resilient_function import LOCAL_FALLBACK_BYTES, ResilientFunction

        self._range = window_range
        self._max_local_bytes = LOCAL_FALLBACK_BYTES
        self._function = ResilientFunction(
            place, PrepareWindows(place.url, options), (_TASK_SCHEMA, STEP_SCHEMA)
        )

    def warm_up(self) -> None:
        """Connect and run an empty job: the first job spends seconds on workers and classes.

        Errors are ignored: the first real job reports them.
        """
        with contextlib.suppress(Exception):
            for _ in self(BatchPayload()):
                pass

    def __call__(self, windows: BatchPayload) -> Iterator[pa.RecordBatch]:
        """Yield record batches in STEP_SCHEMA as they come.

        Raises SparkError (or its WorkerError).
        """
        self._function.connect(_CONNECT_TIMEOUT_S)
        tasks = pa.table({"windows": [windows.to_text()]})
        is_small = windows.bytes <= self._max_local_bytes and windows.changes <= _MAX_LOCAL_CHANGES
        label = ""
        if windows.windows:
            label = self._range(windows.windows[0].lo, windows.windows[-1].hi)
        for batch in self._function(
            tasks, _JOB_TIMEOUT_S, alone=True, is_small=is_small, label=label
        ):
            yield batch if batch.schema.equals(STEP_SCHEMA) else batch.cast(STEP_SCHEMA)

    def close(self) -> None:
        """Drop the connection; the next use connects again."""
        self._function.close()

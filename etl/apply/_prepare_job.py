"""Prepare windows on Spark: a worker gets them as one row of JSON, and returns steps as Arrow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from sluice.etl.apply.prepare_windows import PrepareWindows
from sluice.etl.changes.planning import BatchPayload, PrepareOptions
from sluice.etl.changes.steps import STEP_SCHEMA
from sluice.etl.spark.resilient_function import LOCAL_FALLBACK_BYTES, ResilientFunction
from sluice.etl.spark.session_target import SessionTarget

_CONNECT_TIMEOUT_S = 60.0
_JOB_TIMEOUT_S = 600.0
_MAX_LOCAL_CHANGES = 20_000
"""Limits local work besides bytes: rows that compress well are more work than bytes show."""
_TASK_SCHEMA = pa.schema([("windows", pa.string())])


class SparkPreparer:
    """Prepare windows of a relay log on Spark, small ones in this process while Spark is away.

    Connects at the first use, and runs one job at a time.
    """

    def __init__(self, place: SessionTarget, options: PrepareOptions) -> None:
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
        is_small = windows.bytes <= LOCAL_FALLBACK_BYTES and windows.changes <= _MAX_LOCAL_CHANGES
        for batch in self._function(tasks, _JOB_TIMEOUT_S, alone=True, is_small=is_small):
            yield batch if batch.schema.equals(STEP_SCHEMA) else batch.cast(STEP_SCHEMA)

    def close(self) -> None:
        """Drop the connection; the next use connects again."""
        self._function.close()

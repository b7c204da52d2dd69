"""Spark prepares windows: one row, the windows as JSON, goes to a worker, steps come back as Arrow."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from etl.prepare import BatchDocument, PrepareOptions, PrepareWindows
from etl.spark import session as spark_session
from etl.spark.function import SparkFunction
from etl.spark.judge import Judge
from etl.spark.place import Place
from etl.steps import STEP_SCHEMA

_TIMEOUT_S = 600.0
_TASKS = pa.schema([("windows", pa.string())])


class SparkPreparer:
    """Prepares windows of a relay log on Spark. Connects at the first use; one job at a time."""

    def __init__(self, place: Place, options: PrepareOptions) -> None:
        self._place = place
        self._options = options
        self._spark: Any = None
        self._function: SparkFunction | None = None
        self._judge = Judge()

    def warm_up(self) -> None:
        """Connect and run the job with nothing in it: the first one starts Python workers and loads classes, for
        seconds. Trouble is left for the first real job to meet.
        """
        with contextlib.suppress(Exception):
            for _ in self(BatchDocument()):
                pass

    def __call__(self, windows: BatchDocument) -> Iterator[pa.RecordBatch]:
        """From windows to record batches in STEP_SCHEMA, as they come. Raises SparkError,
        which a WorkerError is too.
        """
        if self._function is None:
            self._spark = spark_session.connect(self._place)
            work = PrepareWindows(self._place.url, self._options)
            self._function = SparkFunction((self._spark, self._place.server), work, (_TASKS, STEP_SCHEMA), self._judge)
        tasks = pa.table({"windows": [json.dumps(windows.to_json())]})
        for batch in self._function(tasks, _TIMEOUT_S, alone=True):
            yield batch if batch.schema.equals(STEP_SCHEMA) else batch.cast(STEP_SCHEMA)

    def reset(self) -> None:
        """Drop the connection; the next use connects anew."""
        if self._function is not None:
            self._function.release()
        if self._spark is not None:
            spark_session.close(self._spark)
        self._spark = self._function = None

"""Spark prepares windows: one row, the windows as JSON, goes to a worker, steps come back as Arrow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from etl.prepare import BatchDocument, PrepareOptions, PrepareWindows
from etl.spark.kept import SMALL_BYTES, KeptFunction
from etl.spark.place import Place
from etl.steps import STEP_SCHEMA

_CONNECT_S = 60.0
_TIMEOUT_S = 600.0
_SMALL_CHANGES = 20_000
"""Rows that pack well are more than a part's bytes tell."""
_TASKS = pa.schema([("windows", pa.string())])


class SparkPreparer:
    """Prepares windows of a relay log on Spark; small ones in this process while Spark is away. Connects at the first
    use; one job at a time.
    """

    def __init__(self, place: Place, options: PrepareOptions) -> None:
        self._function = KeptFunction(place, PrepareWindows(place.url, options), (_TASKS, STEP_SCHEMA))

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
        self._function.connect(_CONNECT_S)
        tasks = pa.table({"windows": [windows.to_text()]})
        is_small = windows.bytes <= SMALL_BYTES and windows.changes <= _SMALL_CHANGES
        for batch in self._function(tasks, _TIMEOUT_S, alone=True, is_small=is_small):
            yield batch if batch.schema.equals(STEP_SCHEMA) else batch.cast(STEP_SCHEMA)

    def close(self) -> None:
        """Drop the connection; the next use connects anew."""
        self._function.close()

"""Prepare a batch in Spark's Python workers.

Spark finds the function by this module's path. So nothing is imported here that only the client
needs: no session, no connection to the downstream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare
from sluice.etl.spark.worker_tuning import column_values, worker_function


@dataclass(frozen=True, slots=True)
class PrepareWindows:
    """Turn rows, each a batch of windows as JSON, into record batches in STEP_SCHEMA."""

    relay_url: str
    options: PrepareOptions

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for text in column_values(batches):
            yield from prepare(self.relay_url, BatchPayload.from_text(text), self.options)

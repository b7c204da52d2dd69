"""Prepare a batch in Spark's Python workers.

Spark finds the function by this module's path. So nothing is imported here that only the client
needs: no session, no connection to the downstream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare
from sluice.etl.spark.errors import report_to_client
from sluice.etl.spark.worker_tuning import freeze_gc


@dataclass(frozen=True, slots=True)
class PrepareWindows:
    """Turn rows, each a batch of windows as JSON, into record batches in STEP_SCHEMA."""

    relay_url: str
    options: PrepareOptions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with report_to_client():
            for batch in batches:
                for text in batch.column(0).to_pylist():
                    yield from prepare(self.relay_url, BatchPayload.from_text(text), self.options)
        freeze_gc()

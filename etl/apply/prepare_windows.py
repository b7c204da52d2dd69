"""What Spark's Python workers do to prepare a batch. Spark finds it by this module's path, so nothing is imported here
that the client alone needs: no session, no connection to the downstream.
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
    """Runs in Spark's Python workers: each of its rows is a batch as JSON, and becomes batches in STEP_SCHEMA."""

    relay_url: str
    options: PrepareOptions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with report_to_client():
            for batch in batches:
                for text in batch.column(0).to_pylist():
                    yield from prepare(self.relay_url, BatchPayload.from_text(text), self.options)
        freeze_gc()

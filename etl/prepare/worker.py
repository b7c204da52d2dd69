"""What Spark's Python workers do to prepare a batch. Spark finds it by this module's path, so nothing is imported here
that the client alone needs: no session, no connection to the downstream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from etl.prepare._documents import BatchDocument
from etl.prepare._options import PrepareOptions
from etl.prepare._windows import prepare
from etl.spark.errors import told_to_client
from etl.spark.worker import freeze_loaded


@dataclass(frozen=True, slots=True)
class PrepareWindows:
    """Runs in Spark's Python workers: each of its rows is a batch as JSON, and becomes batches in STEP_SCHEMA."""

    relay_url: str
    options: PrepareOptions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_to_client():
            for batch in batches:
                for text in batch.column(0).to_pylist():
                    yield from prepare(self.relay_url, BatchDocument.from_text(text), self.options)
        freeze_loaded()

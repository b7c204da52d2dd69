"""Make loads in Spark's workers: chunks become files, see `sluice.etl.copy.staged_loads`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.etl.copy.source import SourceChunk
from sluice.etl.copy.staged_loads import write_files
from sluice.etl.copy.worker import make_loads
from sluice.etl.spark.errors import report_to_client
from sluice.etl.spark.worker_tuning import freeze_gc
from sluice.relay.storage import open_storage
from sluice.tidb.schema import Table


@dataclass(frozen=True, slots=True)
class CopyChunks:
    """Runs in Spark's Python workers, which get no credentials of the downstream."""

    spec: dict[str, Any]
    relay_url: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with report_to_client():
            storage = open_storage(self.relay_url)
            for batch in batches:
                for text in batch.column(0).to_pylist():
                    task = json.loads(text)
                    loads = make_loads(
                        self.spec,
                        SourceChunk.from_json(task["chunk"]),
                        Table.from_json(task["table"]),
                    )
                    yield write_files(storage, task["prefix"], loads)
        freeze_gc()

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
from sluice.etl.spark.worker_tuning import column_values, worker_function
from sluice.relay.storage import open_storage
from sluice.tidb.schema import Table


@dataclass(frozen=True, slots=True)
class CopyChunks:
    """Runs in Spark's Python workers, which get no credentials of the downstream."""

    spec: dict[str, Any]
    relay_url: str

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self.relay_url)
        for text in column_values(batches):
            task = json.loads(text)
            loads = make_loads(
                self.spec, SourceChunk.from_json(task["chunk"]), Table.from_json(task["table"])
            )
            yield write_files(storage, task["prefix"], loads)

"""The job of Spark's workers that makes loads: chunks become files, see `etl.copy.load_files`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from etl.copy.load_files import write_files
from etl.copy.source import Chunk
from etl.copy.worker import make_loads
from etl.spark.errors import told_to_client
from etl.spark.worker import freeze_loaded
from relay.storage import open_storage
from upstream.schema import Table


@dataclass(frozen=True, slots=True)
class CopyChunks:
    """Runs in Spark's Python workers, which get no credentials of the downstream."""

    spec: dict[str, Any]
    relay_url: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_to_client():
            storage = open_storage(self.relay_url)
            for batch in batches:
                for text in batch.column(0).to_pylist():
                    task = json.loads(text)
                    loads = make_loads(self.spec, Chunk.from_json(task["chunk"]), Table.from_json(task["table"]))
                    yield write_files(storage, task["prefix"], loads)
        freeze_loaded()

"""Write chunks of a source as files of a snapshot, in Spark's workers.

They read, write and return what they wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.etl.changes.masks import masked_columns
from sluice.etl.copy.snapshot_files import write_files
from sluice.etl.copy.source import RowSource, SourceChunk
from sluice.etl.copy.sources import open_source
from sluice.etl.spark.worker_tuning import column_values, text_batch, worker_function
from sluice.relay.archive import SnapshotFile
from sluice.relay.storage import Storage, open_storage
from sluice.tidb.schema import Table

__all__ = ["WriteChunks", "WrittenFiles", "chunk_order", "write_snapshot_chunk"]

WRITE_TIMEOUT_S = 3600.0

WrittenFiles = dict[int, list[SnapshotFile]]
"""Each chunk's files, by the chunk's number in the plan."""

MakeFiles = Callable[[Sequence[str]], list[str]]
"""Orders to what came of each, both as JSON. Raises CopyError, SparkError, OSError."""


def chunk_order(number: int, chunk: SourceChunk, table: Table, folder: str) -> str:
    """Return the order to write the plan's chunk `number` into a folder of the archive."""
    return json.dumps(
        {"number": number, "chunk": chunk.to_json(), "table": table.to_json(), "folder": folder}
    )


def write_snapshot_chunk(source: RowSource, storage: Storage, order: Mapping[str, Any]) -> str:
    """Carry an order out; return its files as JSON text. Raises CopyError, OSError.

    Columns with a mask are masked.
    """
    table = Table.from_json(order["table"])
    clear = source.read(SourceChunk.from_json(order["chunk"]), table)
    batches = (masked_columns(batch, table.columns) for batch in clear)
    files = write_files(storage, order["folder"], table, batches)
    return json.dumps({"number": order["number"], "files": [file.to_json() for file in files]})


def parse_written(texts: Sequence[str]) -> WrittenFiles:
    """Parse what `write_snapshot_chunk` returned for several chunks."""
    answers = [json.loads(text) for text in texts]
    return {
        one["number"]: [SnapshotFile.from_json(file) for file in one["files"]] for one in answers
    }


@dataclass(frozen=True, slots=True)
class WriteChunks:
    """Write chunks in Spark's Python workers; orders and results are JSON texts."""

    spec: dict[str, Any]
    archive_url: str

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage, source = open_storage(self.archive_url), open_source(self.spec)
        for text in column_values(batches):
            yield text_batch(write_snapshot_chunk(source, storage, json.loads(text)))

"""Check an archive in Spark's Python workers: read a segment whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c
import pyarrow as pa

from sluice.etl.spark.worker_tuning import column_values, text_batch, worker_function
from sluice.relay import RelayError
from sluice.relay.archive import ArchiveLog, ArchiveSegment, LakeFile
from sluice.relay.part import part_batches
from sluice.relay.storage import Storage

TASK_SCHEMA = pa.schema([("segment", pa.string())])
_READ_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class ReadSegments:
    """Run in Spark's Python workers: read the segments of its rows.

    The rows are in TASK_SCHEMA. For each a row in TEXTS results: a JSON list of the
    segment's faults.
    """

    archive_url: str

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        archive = ArchiveLog.open(self.archive_url)
        for text in column_values(batches):
            segment = ArchiveSegment.from_json(json.loads(text))
            yield text_batch(json.dumps(segment_problems(archive, segment)))


def segment_problems(archive: ArchiveLog, segment: ArchiveSegment) -> list[str]:
    """Return a segment's faults: each line names a file.

    Raises OSError for a store that can't be reached.
    """
    found = [wrong for file in segment.lake if (wrong := _lake_file_problem(archive.storage, file))]
    try:
        found += _log_problems(archive, segment)
    except RelayError as error:
        found.append(str(error))
    return found


def _log_problems(archive: ArchiveLog, segment: ArchiveSegment) -> Iterator[str]:
    """Yield the log's faults: every change is read, checked and counted."""
    changes = transactions = 0
    tables: dict[int, int] = {}
    for window in archive.windows(segment.lo, segment.hi):
        transactions += window.transactions
        for part in window.parts:
            for batch in part_batches(archive.storage, part):
                changes += batch.num_rows
                for entry in batch["table_id"].value_counts():
                    table_id = entry["values"].as_py()
                    tables[table_id] = tables.get(table_id, 0) + entry["counts"].as_py()
    for what, there, noted in (
        ("row changes", changes, segment.changes),
        ("transactions", transactions, segment.transactions),
        ("changes by table", tables, dict(segment.tables)),
    ):
        if there != noted:
            yield f"{archive.url}/{segment.index.path}: {there} {what}, the catalogue has {noted}"


def _lake_file_problem(storage: Storage, file: LakeFile) -> str:
    where = f"{storage.url}/{file.path}"
    crc = size = 0
    try:
        with storage.open(file.path) as opened:
            while data := opened.read(_READ_BYTES):
                crc = google_crc32c.extend(crc, data)
                size += len(data)
    except FileNotFoundError:
        return f"{where}: the file is missing"
    if (size, crc) != (file.bytes, file.crc32c):
        return (
            f"{where}: {size} bytes with CRC-32C {crc:#010x}, the catalogue has {file.bytes} with"
            f" {file.crc32c:#010x}"
        )
    return ""

"""Stage loads as files in the relay's storage: Spark's workers write them and return their names.

Rows that went through Spark itself cost its JVM a quarter of the copy's CPU time, and it held a
chunk in memory. A file is read once and removed; what a killed process leaves behind is removed by
the next one that has the downstream for itself. None need be durable: a chunk whose files are gone
is read again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import google_crc32c
import pyarrow as pa

from sluice.etl.changes.messages import MessageFormat
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.source import SourceChunk
from sluice.etl.copy.worker import LOAD_SCHEMA, make_loads, make_messages
from sluice.etl.spark.worker_tuning import column_values, text_batch, worker_function
from sluice.relay.aligned_chunks import LoadFile
from sluice.relay.json_codec import to_values
from sluice.relay.storage import Storage, open_storage
from sluice.tidb.schema import Table

FOLDER = "loads"


def write_files(storage: Storage, prefix: str, loads: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    """Write loads in LOAD_SCHEMA as files whose names begin with `prefix`.

    Returns, in TEXTS, each `LoadFile` as JSON, in order. Raises OSError.
    """
    token = secrets.token_hex(4)  # an attempt before this one may be under way yet
    written: list[LoadFile] = []
    for batch in loads:
        for layout, rows, warnings, payload in zip(*batch.columns, strict=True):
            content = payload.as_buffer()
            path = f"{FOLDER}/{prefix}-{token}-{len(written):05}"
            with storage.new_temp_file(path) as file:
                file.write(memoryview(content))
            crc = google_crc32c.value(content)
            written.append(
                LoadFile(
                    path,
                    json.loads(layout.as_py()),
                    rows.as_py(),
                    warnings.as_py(),
                    content.size,
                    crc,
                )
            )
    return text_batch(*(json.dumps(to_values(load)) for load in written))


def read_file(storage: Storage, load: LoadFile) -> pa.RecordBatch:
    """Return a load in LOAD_SCHEMA.

    Raises CopyError, transient, if the file isn't what was written.
    """
    try:
        with storage.open(load.path) as file:
            content = file.read_buffer()
    except FileNotFoundError:
        content = pa.py_buffer(b"")
    if content.size != load.bytes or google_crc32c.value(content) != load.crc32c:
        raise CopyError(
            f"{storage.url}/{load.path} has {content.size} bytes and isn't what a worker wrote,"
            f" {load.bytes} bytes: it was removed or damaged, or workers write elsewhere than is"
            " read here ([relay] url must be the same place for both)",
            transient=True,
        )
    offsets = pa.array([0, content.size], pa.int32()).buffers()[1]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([json.dumps(load.layout)]), pa.array([load.rows]), pa.array([load.warnings]),
            pa.BinaryArray.from_buffers(pa.binary(), 1, [None, offsets, content]),
        ],
        schema=LOAD_SCHEMA,
    )  # fmt: skip


def remove_files(storage: Storage, prefix: str = "") -> None:
    """Remove the files whose names begin with `prefix`. Raises OSError."""
    for name in storage.names(FOLDER):
        if name.startswith(prefix):
            storage.remove(f"{FOLDER}/{name}")


@dataclass(frozen=True, slots=True)
class CopyChunks:
    """Run in Spark's Python workers, which get no credentials of the downstream.

    Chunks become text for LOAD DATA, or messages if there is a `message_format`.
    """

    spec: dict[str, Any]
    relay_url: str
    message_format: MessageFormat | None = None

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self.relay_url)
        for text in column_values(batches):
            task = json.loads(text)
            chunk, table = SourceChunk.from_json(task["chunk"]), Table.from_json(task["table"])
            loads = (
                make_loads(self.spec, chunk, table)
                if self.message_format is None
                else make_messages(self.spec, chunk, table, self.message_format)
            )
            yield write_files(storage, task["prefix"], loads)

"""Pass large results from Spark's workers to the client by files beside the archive.

Spark Connect's server holds every task's result until the client has taken it, and refuses a job
whose results exceed `spark.driver.maxResultSize`. So only references pass through it: the driver's
memory doesn't grow with the table, and the client holds one file at a time.

    <archive>/results/<ms>-<token>/<token>    the results of one bucket, an Arrow IPC stream

The client removes a file once it has read it, and the folder at its end. Retention removes what a
killed client has left. None need be durable: a query whose files are gone is asked again.
"""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import google_crc32c
import pyarrow as pa

from sluice.etl.history.as_of.aggregations import AggregateResult, Aggregation
from sluice.etl.history.as_of.bucket import Results
from sluice.etl.history.as_of.lineage import TableGroup
from sluice.relay.archive import DEAD_AFTER_MS
from sluice.relay.checksum_writer import ChecksumWriter
from sluice.relay.errors import RelayCorruptError
from sluice.relay.storage import Storage, open_storage

__all__ = [
    "INLINE_BYTES",
    "RESULTS",
    "ResultFiles",
    "ResultsByFile",
    "read_stream",
    "remove_abandoned_results",
    "result_batch",
    "write_stream",
]

RESULTS = pa.schema(
    [
        pa.field("moment", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)
_FOLDER = "results"
INLINE_BYTES = 64 << 10
"""Payloads of one bucket that pass through Spark: the driver has room for those of 10,000 buckets,
and a query of little data needs no file.
"""
_BY_FILE = -1
"""The moment (TSO) of a result that refers to a file."""


@dataclass(frozen=True, slots=True)
class ResultsByFile:
    """An aggregation whose results, beyond the first few KiB of a bucket, are in one file."""

    finish: Aggregation
    url: str
    folder: str
    inline_bytes: int = INLINE_BYTES

    def __call__(self, family: TableGroup, found: Results) -> Iterator[AggregateResult]:
        results = iter(self.finish(family, found))
        size = 0
        for result in results:
            size += len(result.payload)
            if size > self.inline_bytes:
                yield self._written(itertools.chain([result], results))
                return
            yield result

    def _written(self, results: Iterable[AggregateResult]) -> AggregateResult:
        path, about = write_stream(self.url, self.folder, RESULTS, map(result_batch, results))
        return AggregateResult(_BY_FILE, path, json.dumps(about).encode())


def result_batch(result: AggregateResult) -> pa.RecordBatch:
    """Return a result as a batch of one row, in RESULTS."""
    return pa.RecordBatch.from_pylist([result._asdict()], RESULTS)


def write_stream(
    url: str,
    folder: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    compression: str | None = None,
) -> tuple[str, dict[str, int]]:
    """Write batches as a file of a query; return its path, and its size and checksum.

    No name comes twice: an attempt before this one may be writing yet. Raises OSError.
    """
    path = f"{folder}/{secrets.token_hex(8)}"
    with open_storage(url).new_temp_file(path) as sink:
        counted = ChecksumWriter(sink)
        file = pa.PythonFile(counted, mode="w")
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(file, schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
    return path, {"bytes": counted.written, "crc32c": counted.crc32c}


def read_stream(url: str, path: str, about: Mapping[str, int]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a query's file.

    Raises RelayCorruptError if it isn't what was written.
    """
    try:
        content = open_storage(url).read(path)
    except FileNotFoundError:
        content = b""
    if len(content) != about["bytes"] or google_crc32c.value(content) != about["crc32c"]:
        raise RelayCorruptError(
            f"{url}/{path}: {len(content)} bytes aren't what a worker wrote,"
            f" {about['bytes']} bytes",
            hint="ask again; workers and client must see the same archive: [archive] url",
        )
    yield from pa.ipc.open_stream(content)


class ResultFiles:
    """The result files of one query: a context that removes them at its end."""

    def __init__(self, url: str, inline_bytes: int = INLINE_BYTES) -> None:
        """Name the files below the archive at `url`; see `ResultsByFile` for `inline_bytes`."""
        self._url = url
        self._inline_bytes = inline_bytes
        self._folder = f"{_FOLDER}/{time.time_ns() // 1_000_000}-{secrets.token_hex(6)}"
        self._storage = open_storage(url)
        self._is_used = False

    def __enter__(self) -> ResultFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._is_used:
            _remove_folder(self._storage, self._folder)

    def of(self, finish: Aggregation) -> Aggregation:
        """Return the aggregation with its results by file."""
        return ResultsByFile(finish, self._url, self._folder, self._inline_bytes)

    def read(self, results: Iterable[AggregateResult]) -> Iterator[AggregateResult]:
        """Yield what the results refer to, and remove each file that has been read.

        Raises RelayCorruptError if a file isn't what a worker wrote.
        """
        for result in results:
            if result.moment != _BY_FILE:
                yield result
                continue
            self._is_used = True
            for batch in read_stream(self._url, result.name, json.loads(result.payload)):
                yield from (AggregateResult(**row) for row in batch.to_pylist())
            self._storage.remove(result.name)

    def open_folder(self) -> tuple[str, str]:
        """Return the archive's URL and the query's folder, which may get other files."""
        self._is_used = True
        return self._url, self._folder


def remove_abandoned_results(storage: Storage, now_ms: int) -> int:
    """Remove the result files of clients that were killed, and return how many queries'.

    As with pins, a client is dead after two days (`now_ms`: the time in ms). Raises OSError.
    """
    dead = [
        name
        for name in storage.names(_FOLDER)
        if (began := name.partition("-")[0]).isdecimal() and int(began) < now_ms - DEAD_AFTER_MS
    ]
    for name in dead:
        _remove_folder(storage, f"{_FOLDER}/{name}")
    return len(dead)


def _remove_folder(storage: Storage, folder: str) -> None:
    for name in storage.names(folder):
        storage.remove(f"{folder}/{name}")
    storage.remove_empty_directory(folder)

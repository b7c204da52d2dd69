"""Read rows at one timestamp in Spark's workers, into a file for each LOAD DATA statement.

Aligned chunks have them in this form.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import google_crc32c
import pyarrow as pa

from sluice.etl.copy.tidb_session import TidbAddress, TidbSession, read_rows
from sluice.etl.copy.worker import loads_of
from sluice.etl.spark.worker_tuning import column_values, text_batch, worker_function
from sluice.relay.aligned_chunks import LoadFile
from sluice.relay.json_codec import JsonDocument
from sluice.relay.storage import Storage, open_storage
from sluice.tidb.schema import Table


@dataclass(frozen=True, slots=True)
class ReadRequest(JsonDocument):
    """The rows of `table` at `ts` (TSO) that meet `condition` (SQL), to files below `path`.

    Their names begin with `path`. Reading ends early where they become more than `most_bytes`, 0
    for no limit.
    """

    ts: int
    table: Table
    condition: str
    path: str
    most_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReadResult(JsonDocument):
    """The result of a request.

    `complete` False: it was more than `most_bytes`, and nothing of it counts. `read_ms`: how long
    the worker took.
    """

    loads: tuple[LoadFile, ...]
    complete: bool
    read_ms: float

    @property
    def rows(self) -> int:
        """Return the number of rows in all files."""
        return sum(load.rows for load in self.loads)

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(load.bytes for load in self.loads)


def read_chunk(session: TidbSession, storage: Storage, order: ReadRequest) -> ReadResult:
    """Carry an order out. Raises CopyError, OSError."""
    began = time.perf_counter()
    session.read_at(order.ts)
    loads: list[LoadFile] = []
    size = 0
    # Generated columns that TiDB stores come, too: downstream they may be plain ones.
    target = replace(order.table, columns=order.table.stored_columns)
    for batch in loads_of(target, read_rows(session, target, order.condition)):
        layout, rows, warnings, payload = (column[0] for column in batch.columns)
        content = payload.as_buffer().to_pybytes()
        path = f"{order.path}-{len(loads)}.load"
        storage.replace(path, content)  # Spark may run a task twice
        checksum = google_crc32c.value(content)
        loads.append(
            LoadFile(
                path,
                json.loads(layout.as_py()),
                rows.as_py(),
                warnings.as_py(),
                len(content),
                checksum,
            )
        )
        size += len(content)
        if order.most_bytes and size > order.most_bytes:
            session.close()  # the rest of the result isn't read
            return ReadResult(tuple(loads), complete=False, read_ms=_ms_since(began))
    return ReadResult(tuple(loads), complete=True, read_ms=_ms_since(began))


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)


_idle_sessions: dict[TidbAddress, TidbSession] = {}
"""Connections of this worker that the next task may use."""


@contextlib.contextmanager
def _session_of(address: TidbAddress) -> Iterator[TidbSession]:
    session = _idle_sessions.pop(address, None)
    if session is None or not session.is_alive():
        session = TidbSession(address)
    try:
        yield session
    except BaseException:
        session.close()
        raise
    if session.is_open:
        _idle_sessions[address] = session


@dataclass(frozen=True, slots=True)
class ReadChunks:
    """Read chunks in Spark's Python workers; requests and results are JSON texts."""

    address: dict[str, Any]
    relay_url: str

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self.relay_url)
        for text in column_values(batches):
            with _session_of(TidbAddress.from_json(self.address)) as session:
                found = read_chunk(session, storage, ReadRequest.from_json(json.loads(text)))
            yield text_batch(json.dumps(found.to_json()))


ReadChunk = Callable[[ReadRequest], ReadResult]
"""Raises CopyError, SparkError, OSError."""

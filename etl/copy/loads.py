"""Loads made on Spark, a job a chunk; they come as files."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from etl.copy.chunk_files import CopyChunks
from etl.copy.load_files import read_file, remove_files
from etl.copy.source import Chunk
from etl.copy.sources import place_of
from etl.spark.calls import SparkCalls
from etl.spark.place import Place
from relay.appointments import Load
from relay.storage import open_storage
from upstream.schema import Table

_TIMEOUT_S = 3600.0

MakeLoads = Callable[[Chunk, Table], Iterator[pa.RecordBatch]]
"""A chunk of an upstream table to record batches in LOAD_SCHEMA. Raises CopyError, SparkError."""


class SparkLoads:
    """Makes loads on a Spark Connect server, a job a chunk; called by several threads side by side.
    Connects at the first use, and anew after the connection was lost.
    """

    def __init__(self, place: Place, spec: Mapping[str, Any]) -> None:
        """`place`: on the relay log, where the files go. `spec`: the source's, see `etl.copy.sources`."""
        self._storage = open_storage(place.url)
        place = place._replace(also=(*place.also, *place_of(spec)))
        self._calls = SparkCalls(place, CopyChunks(dict(spec), place.url), _TIMEOUT_S)

    def __call__(self, chunk: Chunk, table: Table) -> Iterator[pa.RecordBatch]:
        prefix = secrets.token_hex(6)
        try:
            for load in self.files(chunk, table, prefix):
                batch = read_file(self._storage, load)
                self._storage.remove(load.path)
                yield batch
        except BaseException:
            with contextlib.suppress(OSError):
                remove_files(self._storage, prefix)
            raise

    def files(self, chunk: Chunk, table: Table, prefix: str) -> list[Load]:
        """The loads of a chunk as files whose names begin with `prefix`. Raises SparkError, CopyError."""
        document = {"chunk": chunk.to_json(), "table": table.to_json(), "prefix": prefix}
        return [Load(**json.loads(text)) for text in self._calls([json.dumps(document)])]

    def discard(self, loads: Iterable[Load]) -> None:
        """Remove files that nobody is going to read. Raises OSError."""
        for load in loads:
            self._storage.remove(load.path)

    def connect(self) -> None:
        """Raises SparkUnavailableError after a minute without an answer: better before anything is written."""
        self._calls.connect()

    def close(self) -> None:
        """Close the connection; the session stays on the server."""
        self._calls.close()

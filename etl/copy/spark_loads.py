"""Loads made on Spark, a job a chunk; they come as files."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from sluice.etl.changes.messages import MessageFormat
from sluice.etl.copy.source import SourceChunk
from sluice.etl.copy.sources import source_url
from sluice.etl.copy.staged_loads import CopyChunks, read_file, remove_files
from sluice.etl.spark.job_calls import JobCalls
from sluice.etl.spark.session_target import SessionTarget
from sluice.relay.aligned_chunks import LoadFile
from sluice.relay.json_codec import from_values
from sluice.relay.storage import open_storage
from sluice.tidb.schema import Table

_LOAD_TIMEOUT_S = 3600.0

MakeLoads = Callable[[SourceChunk, Table], Iterator[pa.RecordBatch]]
"""A chunk of an upstream table to record batches in LOAD_SCHEMA. Raises CopyError, SparkError."""


class SparkLoadMaker:
    """Make loads on a Spark Connect server, a job a chunk; called by several threads side by side.

    Connects at the first use, and again after the connection was lost.
    """

    def __init__(
        self,
        place: SessionTarget,
        spec: Mapping[str, Any],
        message_format: MessageFormat | None = None,
    ) -> None:
        """Create the Spark load maker; `place`: on the relay log, where the files go.

        `spec`: the source's, see `sluice.etl.copy.sources`. With a `message_format` loads are
        messages of a topic.
        """
        self._storage = open_storage(place.url)
        place = place._replace(also=(*place.also, *source_url(spec)))
        function = CopyChunks(dict(spec), place.url, message_format)
        self._calls = JobCalls(place, function, _LOAD_TIMEOUT_S)

    def __call__(self, chunk: SourceChunk, table: Table) -> Iterator[pa.RecordBatch]:
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

    def files(self, chunk: SourceChunk, table: Table, prefix: str) -> list[LoadFile]:
        """Return the loads of a chunk as files whose names begin with `prefix`.

        Raises SparkError, CopyError.
        """
        document = {"chunk": chunk.to_json(), "table": table.to_json(), "prefix": prefix}
        answers = self._calls([json.dumps(document)])
        return [from_values(LoadFile, json.loads(text), "a load") for text in answers]

    def discard(self, loads: Iterable[LoadFile]) -> None:
        """Remove files that no process is going to read. Raises OSError."""
        for load in loads:
            self._storage.remove(load.path)

    def connect(self) -> None:
        """Connect to Spark. Raises SparkUnavailableError after a minute without an answer.

        That is better before anything is written.
        """
        self._calls.connect()

    def close(self) -> None:
        """Close the connection; the session stays on the server."""
        self._calls.close()

"""Chunks read on Spark, a job each."""

from __future__ import annotations

from collections.abc import Callable

from etl.backfill.reader import ChunkRead, ReadChunks, ReadOrder
from etl.copy.tidb_session import TidbAddress
from etl.spark.calls import SparkCalls
from etl.spark.place import Place

_TIMEOUT_S = 600.0

ReadChunk = Callable[[ReadOrder], ChunkRead]
"""Raises CopyError, SparkError, OSError."""


class SparkReads:
    """Reads chunks on a Spark Connect server."""

    def __init__(self, place: Place, address: TidbAddress) -> None:
        """`place`: on the relay log, where the rows go."""
        function = ReadChunks(address.to_json(), place.url)
        self._calls = SparkCalls(place, function, _TIMEOUT_S)

    def __call__(self, order: ReadOrder) -> ChunkRead:
        (text,) = self._calls([order.to_text()])
        return ChunkRead.parse(text)

    def close(self) -> None:
        """Close the connection; the session stays on the server."""
        self._calls.close()

"""Chunks read on Spark, a job each."""

from __future__ import annotations

from collections.abc import Callable

from etl.backfill.reader import ChunkRead, ReadChunks, ReadOrder
from etl.copy.tidb_session import TidbAddress
from etl.spark.calls import SparkCalls

_TIMEOUT_S = 600.0

ReadChunk = Callable[[ReadOrder], ChunkRead]
"""Raises CopyError, SparkError, OSError."""


class SparkReads:
    """Reads chunks on a Spark Connect server."""

    def __init__(self, remote: str, relay_url: str, address: TidbAddress, role: str = "backfill") -> None:
        """`remote`: the Spark Connect server. `role`: whose session it is there."""
        function = ReadChunks(address.to_json(), relay_url)
        self._calls = SparkCalls((remote, role, relay_url), function, _TIMEOUT_S)

    def __call__(self, order: ReadOrder) -> ChunkRead:
        (text,) = self._calls([order.to_text()])
        return ChunkRead.parse(text)

    def close(self) -> None:
        """Close the connection; the session stays on the server."""
        self._calls.close()

"""Chunks read on Spark, a job each."""

from __future__ import annotations

from collections.abc import Callable

from sluice.etl.copy.backfill.reader import ReadChunks, ReadRequest, ReadResult
from sluice.etl.copy.tidb_session import TidbAddress
from sluice.etl.spark.job_calls import JobCalls
from sluice.etl.spark.session_target import SessionTarget

_READ_TIMEOUT_S = 600.0

ReadChunk = Callable[[ReadRequest], ReadResult]
"""Raises CopyError, SparkError, OSError."""


class SparkChunkReader:
    """Reads chunks on a Spark Connect server."""

    def __init__(self, place: SessionTarget, address: TidbAddress) -> None:
        """`place`: on the relay log, where the rows go."""
        function = ReadChunks(address.to_json(), place.url)
        self._calls = JobCalls(place, function, _READ_TIMEOUT_S)

    def __call__(self, order: ReadRequest) -> ReadResult:
        (text,) = self._calls([order.to_text()])
        return ReadResult.parse(text)

    def close(self) -> None:
        """Close the connection; the session stays on the server."""
        self._calls.close()

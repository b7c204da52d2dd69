"""TiDB's pump client on the cluster's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from sluice.tidb import PumpClient, WriteTimes

STRATEGIES = ("range", "hash", "score")


class PumpWriter:
    """Open a PumpClient at `pd_url`, the cluster's own port, as TiDB does.

    Must not be used before `open`.
    """

    def __init__(self, pd_url: str, cluster_id: int, strategy: str) -> None:
        self._pd_url = pd_url
        self._cluster_id = cluster_id
        self._strategy = strategy
        self._client: PumpClient | None = None

    async def open(self) -> None:
        """Read the registry.

        PumpWriteError if no pump is registered; errors of etcd pass through.
        """
        # In a thread: the client waits for answers of this very loop.
        self._client = await asyncio.to_thread(
            PumpClient,
            self._pd_url,
            self._cluster_id,
            strategy=self._strategy,
            times=WriteTimes(probe_s=2.0),
        )

    async def prewrite(self, start_ts: int, payload: bytes) -> None:
        """Return when a pump has the Prewrite on disk; PumpWriteError if none takes it in time."""
        assert self._client is not None
        await asyncio.wrap_future(self._client.prewrite_async(start_ts, payload))

    async def finish(self, start_ts: int, payload: bytes) -> None:
        """Send the Commit or Rollback to the pump that has the Prewrite.

        PumpWriteError after ten minutes in vain.
        """
        assert self._client is not None
        await asyncio.wrap_future(self._client.finish_async(start_ts, payload))

    async def close(self) -> None:
        """Close the connections; what is still on its way fails."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)


class TransactionWriter(Protocol):
    """Write a TiDB's transactions: to pumps, or to a TiKV that is captured."""

    async def open(self) -> None: ...

    async def prewrite(self, start_ts: int, payload: bytes) -> None: ...

    async def finish(self, start_ts: int, payload: bytes) -> None: ...

    async def close(self) -> None: ...


class SeveralWriters:
    """Write to each of several, as a TiDB with binlogs does whose TiKV is captured."""

    def __init__(self, writers: Sequence[TransactionWriter]) -> None:
        self._writers = writers

    async def open(self) -> None:
        """Open all."""
        for writer in self._writers:
            await writer.open()

    async def prewrite(self, start_ts: int, payload: bytes) -> None:
        """Return when the last one has it."""
        for writer in self._writers:
            await writer.prewrite(start_ts, payload)

    async def finish(self, start_ts: int, payload: bytes) -> None:
        """End the transaction at all."""
        for writer in self._writers:
            await writer.finish(start_ts, payload)

    async def close(self) -> None:
        """Close all."""
        for writer in self._writers:
            await writer.close()

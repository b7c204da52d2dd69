"""Define the lane's interfaces: connection, record intake, and answers to calls but WriteBinlog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from sluice.pump_service.cluster import ClientConnection
from sluice.pump_service.grpc_fastpath.hpack import Header
from sluice.pump_service.grpc_fastpath.sender import FlowControlledSender
from sluice.pump_service.store import Record


class RecordIngest(Protocol):
    """Turn the bytes of a WriteBinlogReq into a record, and take records in."""

    def admit(self, data: bytes, begin: int = 0, end: int | None = None) -> Record | None:
        """Return the record in data[begin:end]; None for a probe, which succeeds without writing.

        Raises WriteRejected.
        """

    def fast_admission(self) -> tuple[bytes, int, bool, type[Record]]:
        """Return what a request may hold now to be taken without `admit`.

        The tuple: how the request begins, up to the payload's length; the highest timestamp;
        whether Prewrites are taken; the record type.
        """

    def connect(self, ip: str) -> ClientConnection:
        """Return a connection from that address; to be closed when it is lost."""

    def submit(
        self,
        records: Sequence[Record],
        done: Callable[[BaseException | None], None],
        origin: ClientConnection | None = None,
        *,
        here: bool = False,
        later: bool = False,
    ) -> None:
        """Submit as Store.submit does; `origin`: the records' connection, if that is known."""

    def flush(self) -> None:
        """Flush as Store.flush does."""

    def observe(self, seconds: float, calls: int, *, ok: bool) -> None:
        """Count `calls` that the store answered together, `seconds` after they came."""

    def count_rejected(self) -> None:
        """Count a call that never reached the store."""


class ClientCalls(Protocol):
    """Represent a client's connection to its context and to the code that answers calls on it.

    Used in the loop's thread only.
    """

    @property
    def origin(self) -> ClientConnection | None:
        """Return the client that the connection belongs to; None over a Unix socket."""

    @property
    def peer(self) -> str:
        """Return the client's address, for logs."""

    @property
    def host(self) -> str:
        """Return the client's address without its port."""

    @property
    def sender(self) -> FlowControlledSender:
        """Return the sender that takes the frames of an answer."""

    @property
    def behind(self) -> bool:
        """Return whether frames of the client wait to be read, a reset of its calls maybe."""

    @property
    def busy(self) -> bool:
        """Return whether calls are open or unanswered."""

    def answer(self, streams: list[int], error: BaseException | None) -> None:
        """Take the store's verdict on calls of this connection; `flush` sends the answers."""

    def flush(self) -> None:
        """Write what is ready."""

    async def sent(self, stream: int) -> None:
        """Wait until all that was queued on the stream has left for the network.

        Raises CancelledError if the stream or the connection is closed first.
        """

    def ended(self, stream: int) -> None:
        """Forget the stream: the bridge has answered it."""

    def set_read_paused(self, *, on: bool) -> None:
        """Stop or go on reading, because the store is full or has room again."""

    def go_away(self) -> None:
        """Ask the client, by a GOAWAY, to open no more calls here."""

    def close_if_idle(self, now: float) -> None:
        """Close the connection if it is idle."""

    def close(self) -> None:
        """Close for good."""


RpcDispatch = Callable[[ClientCalls, int, Sequence[Header], bytes], "asyncio.Task[None]"]
"""`bridge(connection, stream, headers, body)` answers a call other than WriteBinlog."""

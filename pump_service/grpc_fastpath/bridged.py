"""The calls of a connection that aren't WriteBinlog's, while they are being answered."""

from __future__ import annotations

import asyncio

from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.context import FastPathServer
from sluice.pump_service.grpc_fastpath.hpack import Headers
from sluice.pump_service.grpc_fastpath.requests import is_grpc
from sluice.pump_service.grpc_fastpath.roles import ClientCalls


class ProxiedCalls:
    """Tasks by stream.

    `count`: those that haven't ended, also where the client has reset the stream since.
    """

    __slots__ = ("_context", "_tasks", "count")

    def __init__(self, context: FastPathServer) -> None:
        self._context = context
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.count = 0

    def begin(self, lane: ClientCalls, stream: int, headers: Headers, body: bytes) -> bytes | None:
        """Begin to answer a call; return the frames of its refusal, if it is refused."""
        context = self._context
        if not is_grpc(headers):
            return f.header_frames(stream, ((b":status", b"415"),), end_stream=True)
        if self.count >= context.limits.calls or context.calls >= context.limits.all_calls:
            text = (
                f"too many calls at a time: {self.count} on this connection, {context.calls} in all"
            )
            return f.error_reply(stream, f.GRPC_RESOURCE_EXHAUSTED, text)
        self.count += 1
        context.calls += 1
        task = self._tasks[stream] = context.bridge(lane, stream, headers, body)
        task.add_done_callback(self._on_done)
        return None

    def _on_done(self, _task: asyncio.Task[None]) -> None:
        self.count -= 1
        self._context.calls -= 1

    def __bool__(self) -> bool:
        """Return whether an answer is under way that a client waits for."""
        return bool(self._tasks)

    def ended(self, stream: int) -> None:
        """Forget the task of a stream that is answered."""
        self._tasks.pop(stream, None)

    def cancel(self, stream: int) -> None:
        """Cancel the task of a stream that the client has reset."""
        task = self._tasks.pop(stream, None)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """Cancel all tasks because the connection is closed."""
        for task in self._tasks.values():
            task.cancel()

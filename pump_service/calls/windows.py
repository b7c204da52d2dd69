"""Answer Bounds and Await of `sluice.Window` on a fast-path connection.

`window_reads` answers Read. Landing makes ten of these small calls a second. Each takes a thread,
which may wait for the store. The event loop itself answers Bounds of an empty window: with many
pumps and little traffic that is most of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from sluice.pump_service.calls.window_reads import WindowReads
from sluice.pump_service.calls.window_service import MAX_WAITING_CALLS, CallRejected, WindowService
from sluice.pump_service.grpc_fastpath import ClientCalls
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.tidb import pb

_READ = "/sluice.Window/Read"
_MAX_THREADS = MAX_WAITING_CALLS + 8  # at most MAX_WAITING_CALLS of them wait
MAX_CALLS = 256
"""Concurrent calls, including those that were reset while a thread worked on them."""
_ACCEPT_TIMEOUT_S = 15.0
"""Limit for the client to read an answer; until then the call counts, afterwards it is rejected."""


class WindowCalls:
    """Answer window calls.

    `run` answers one call, `stop` ends all. Everything but the store's part runs in the loop.
    """

    def __init__(self, service: WindowService) -> None:
        self._calls: dict[str, tuple[Any, Callable[[Any], Message]]] = {
            "/sluice.Window/Bounds": (pb.window.BoundsRequest, service.bounds),
            "/sluice.Window/Await": (pb.window.AwaitRequest, service.await_newer),
            "/sluice.Window/Digest": (pb.window.DigestRequest, service.digest),
        }
        self._bounds_at_once = service.bounds_at_once
        self._reads = WindowReads(service)
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="pump-window")
        self._open: set[asyncio.Future[bytes]] = set()
        self._unaccepted: set[asyncio.Timeout] = set()
        self._begun = 0
        self._stopping = False

    def serves(self, path: str) -> bool:
        """Return whether `run` answers calls of this path."""
        return path in self._calls or path == _READ

    async def run(self, lane: ClientCalls, stream: int, path: str, message: bytes) -> None:
        """Answer the stream."""
        if path == _READ:
            await self._reads.run(lane, stream, message)
            return
        kind, handle = self._calls[path]
        sender = lane.sender
        try:
            request = kind.FromString(message)
        except DecodeError:
            sender.out.append(
                f.error_reply(stream, f.GRPC_INTERNAL, f"the request is no {kind.DESCRIPTOR.name}")
            )
            return
        try:
            answer = self._at_once(request) or await self._answer(handle, request)
        except CallRejected as refused:
            sender.out.append(f.error_reply(stream, refused.code.value[0], str(refused)))
            return
        sender.out.append(f.header_frames(stream, f.RESPONSE_HEADERS, end_stream=False))
        sender.queue(stream, b"\0" + len(answer).to_bytes(4, "big") + answer)
        sender.finish(stream, f.header_frames(stream, f.OK_TRAILERS, end_stream=True))
        lane.flush()
        await self._await_accepted(lane, stream)

    def stop(self) -> None:
        """Reject running and waiting calls, so that none delays the pump's end.

        The loop's thread calls it.
        """
        self._stopping = True
        self._reads.stop()
        for answer in self._open:
            if not answer.done():
                answer.set_exception(_leaving())
        for timeout in self._unaccepted:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _await_accepted(self, lane: ClientCalls, stream: int) -> None:
        """Wait until the client has taken the answer, so that unread answers don't pile up."""
        refusal = CallRejected(
            grpc.StatusCode.CANCELLED,
            f"nothing of the answer was taken for {_ACCEPT_TIMEOUT_S:.0f} s",
        )
        timeout = asyncio.timeout(_ACCEPT_TIMEOUT_S)
        try:
            async with timeout:
                self._unaccepted.add(timeout)
                await lane.sender.drained(stream)
        except TimeoutError:
            if self._stopping:
                refusal = _leaving()
            lane.sender.drop(stream)
            trailers = f.status_trailers(refusal.code.value[0], str(refusal))
            lane.sender.finish(stream, f.header_frames(stream, trailers, end_stream=True))
        finally:
            self._unaccepted.discard(timeout)
            del timeout  # breaks the cycle timeout, task, error, frame, which would keep the answer

    def _at_once(self, request: Message) -> bytes:
        """Return the answer if it needs no thread; else b""."""
        found = (
            self._bounds_at_once(request) if isinstance(request, pb.window.BoundsRequest) else None
        )
        return b"" if found is None else found.SerializeToString()

    async def _answer(self, handle: Callable[[Any], Message], request: Message) -> bytes:
        if self._stopping:
            raise _leaving()
        if self._begun >= MAX_CALLS:
            raise CallRejected(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_CALLS} calls are under way; ask again"
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()

        def deliver(found: bytes | Exception) -> None:
            self._begun -= 1
            if answer.done():
                return
            if isinstance(found, bytes):
                answer.set_result(found)
            else:
                answer.set_exception(found)

        def work() -> None:
            found: bytes | Exception
            try:
                found = handle(request).SerializeToString()
            except Exception as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(deliver, found)

        job = self._threads.submit(work)
        self._begun += 1
        self._open.add(answer)
        try:
            return await answer
        finally:
            self._open.discard(answer)
            if job.cancel():  # the client reset the stream before a thread was free
                self._begun -= 1


def _leaving() -> CallRejected:
    return CallRejected(grpc.StatusCode.UNAVAILABLE, "the pump is shutting down")

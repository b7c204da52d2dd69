"""Answer Read of `sluice.Window` on a fast-path connection.

A thread encodes the window a little ahead. The event loop sends the pieces unchanged, as the
client's flow-control windows allow.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial

import grpc
from google.protobuf.message import DecodeError

from sluice.pump_service.calls.window_service import CallRejected, WindowService, leaving_error
from sluice.pump_service.grpc_fastpath import ClientCalls
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.tidb import pb
from sluice.tidb.codec.varint import encode_uvarint

_MAX_PIECES_AHEAD = 2  # pieces of up to a MiB, encoded before the client has read the former ones
_MAX_THREADS = 16
"""Threads of all readers. MAX_READS of them read; the others wait, and cancel stalled readers."""
_READ_TURN_S = 8.0
"""Wait for a free thread; with the service's own wait it is below a reader's timeout."""
_CHUNK = b"\x0a"  # the field of a ReadResponse, as number << 3 | wire type


class WindowReads:
    """Answer Read calls, each in a thread: `run` answers one, `stop` ends all."""

    def __init__(self, service: WindowService) -> None:
        self._service = service
        self._running: set[_WindowRead] = set()
        self._free = asyncio.Semaphore(_MAX_THREADS)
        self._stopping = False

    async def run(self, lane: ClientCalls, stream: int, message: bytes) -> None:
        """Answer the stream until its client goes away or `stop` is called."""
        sender = lane.sender
        try:
            request = pb.window.ReadRequest.FromString(message)
        except DecodeError:
            sender.out.append(
                f.error_reply(stream, f.GRPC_INTERNAL, "the request is no ReadRequest")
            )
            return
        try:
            async with asyncio.timeout(_READ_TURN_S):
                await self._free.acquire()
        except TimeoutError:
            sender.out.append(
                f.error_reply(
                    stream, f.GRPC_UNAVAILABLE, "too many windows are being read; ask again"
                )
            )
            return
        if self._stopping:
            self._free.release()
            sender.out.append(f.error_reply(stream, f.GRPC_UNAVAILABLE, str(leaving_error())))
            return
        try:
            reading = _WindowRead(self._service, request, lane.peer, self._free.release)
        except RuntimeError:  # the system can't start another thread
            self._free.release()
            raise
        self._running.add(reading)
        try:
            sender.out.append(f.header_frames(stream, f.RESPONSE_HEADERS, end_stream=False))
            while (piece := await reading.next_piece()) is not None:
                head = _CHUNK + encode_uvarint(len(piece))
                sender.queue(stream, b"\0" + (len(head) + len(piece)).to_bytes(4, "big") + head)
                sender.queue(stream, piece)
                lane.flush()
                await lane.sent(stream)
        except asyncio.CancelledError:
            if reading.rejection is None:  # the client reset the stream
                raise
        finally:
            reading.end(None)
            self._running.discard(reading)
        sender.drop(stream)  # pieces the client has not read
        refusal = reading.rejection
        trailers = (
            f.OK_TRAILERS
            if refusal is None
            else f.status_trailers(refusal.code.value[0], str(refusal))
        )
        sender.finish(stream, f.header_frames(stream, trailers, end_stream=True))

    def stop(self) -> None:
        """End all reads, so that none delays the pump's end. The loop's thread calls it."""
        self._stopping = True
        for reading in list(self._running):
            reading.end(leaving_error())


class _WindowRead:
    """Read a window in a thread, at most `_MAX_PIECES_AHEAD` pieces ahead.

    Implements the service's ReadStream.
    """

    def __init__(
        self,
        service: WindowService,
        request: pb.window.ReadRequest,
        peer: str,
        gone: Callable[[], None],
    ) -> None:
        """Start in the task that sends the pieces.

        The loop's thread calls `gone` when the thread has ended.
        """
        self.rejection: CallRejected | None = None
        """Reason for an early end, for the client."""
        self._service = service
        self._request = request
        self._peer = peer
        self._on_gone = gone
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._pieces: asyncio.Queue[memoryview | None] = asyncio.Queue()
        self._room = threading.Semaphore(_MAX_PIECES_AHEAD)
        self._ended = threading.Event()
        threading.Thread(target=self._read, name="pump-window-read", daemon=True).start()

    async def next_piece(self) -> memoryview | None:
        """Return the next piece of the Arrow stream; None at its end."""
        piece = await self._pieces.get()
        self._room.release()
        return piece

    def end(self, refusal: CallRejected | None) -> None:
        """End the thread, and with a rejection also the task that sends.

        The loop's thread calls it.
        """
        # a cancelled task's error refers to this object: a cycle
        task, self._task = self._task, None
        if self._ended.is_set():
            return
        self._ended.set()
        self._room.release()
        if refusal is not None and task is not None:
            self.rejection = refusal
            task.cancel()

    def peer(self) -> str:
        return self._peer

    def is_active(self) -> bool:
        return not self._ended.is_set()

    def cancel(self) -> None:
        refusal = CallRejected(
            grpc.StatusCode.CANCELLED, "nothing of the window was taken, and others wait"
        )
        self._in_loop(partial(self.end, refusal))

    def _read(self) -> None:
        refusal = None
        pieces = self._service.read(self._request, self)
        try:
            for piece in pieces:
                self._room.acquire()
                if self._ended.is_set():
                    return
                self._in_loop(partial(self._pieces.put_nowait, piece))
        except CallRejected as refused:
            refusal = refused
        except Exception as error:  # its text goes to the client
            refusal = CallRejected(grpc.StatusCode.UNKNOWN, str(error))
        finally:
            pieces.close()
            self._in_loop(partial(self._finish, refusal))

    def _finish(self, refusal: CallRejected | None) -> None:
        self._on_gone()
        if self.rejection is None:
            self.rejection = refusal
        self._pieces.put_nowait(None)

    def _in_loop(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

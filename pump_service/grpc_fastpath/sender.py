"""Send for a lane connection: flow-control windows, and streams that exceed them.

A peer may open windows of 2 GiB and take nothing. So what the transport holds is bounded, too:
`refill` says how much of it is free, and what is beyond waits here, in the message that it is of.

A WINDOW_UPDATE costs what it lets go: one for a stream touches that stream, one for the connection
those that wait for nothing else (`_ready`). A new initial window counts at once, but the streams
that may send by it are looked for once a read (`serve_resized`).
"""

from __future__ import annotations

import asyncio
from collections import deque

from sluice.pump_service import kernel
from sluice.pump_service.grpc_fastpath.frames import (
    DATA,
    DEFAULT_WINDOW,
    EMPTY_MESSAGE,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEADERS,
    MAX_FRAME,
    MAX_WINDOW,
    OK_TRAILERS,
    REPLY_PARTS,
    REPLY_WINDOW,
    RESPONSE_HEADERS,
    Http2ConnectionError,
    frame,
)
from sluice.pump_service.grpc_fastpath.hpack import encode_headers

TRANSPORT_BYTES = 256 << 10
"""Bytes of messages that a connection's transport holds at most; a socket takes as many at once."""
_CREDIT_LIMIT = 4096
_CREDIT_BYTES, _QUEUE_BYTES = 100, 700
"""that a stream takes whose window isn't the usual one, and one that has something to send and may
not
"""


class _SendQueue:
    __slots__ = ("drained", "parts", "trailers")

    def __init__(self) -> None:
        self.parts: deque[memoryview] = deque()
        self.trailers: bytes | None = None
        self.drained: asyncio.Future[None] | None = None


_RESPONSE_BLOCK, _OK_BLOCK = encode_headers(RESPONSE_HEADERS), encode_headers(OK_TRAILERS)
_UNSENT_REPLY = _SendQueue()
"""Stand for a WriteBinlog call's message of which no byte may be sent yet, on whichever stream.

A crowd that takes no answers leaves 50,000 of them. With objects of their own a full garbage
collection looked through those for 80 to 120 ms, every other second.
"""
_UNSENT_REPLY.parts.append(memoryview(EMPTY_MESSAGE))


class FlowControlledSender:
    """Send what the peer's flow control allows, and keep the rest.

    Frames to write go to `out`; the connection writes and clears it.
    """

    __slots__ = (
        "_credit",
        "_earned",
        "_queues",
        "_ready",
        "_resized",
        "_room",
        "initial",
        "out",
        "window",
    )

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.window = DEFAULT_WINDOW  # of the connection
        self.initial = DEFAULT_WINDOW  # of a stream, as the peer's SETTINGS say
        # WINDOW_UPDATEs minus bytes sent, for streams where that isn't 0
        self._credit: dict[int, int] = {}
        self._queues: dict[int, _SendQueue] = {}
        # of them those that only the connection's window or its transport holds back, in turn
        self._ready: dict[int, None] = {}
        self._room = TRANSPORT_BYTES
        self._resized = False
        self._earned = 0

    @property
    def queued_bytes(self) -> int:
        """Return bytes that are kept for the peer's windows, about."""
        return _CREDIT_BYTES * len(self._credit) + _QUEUE_BYTES * len(self._queues)

    def pop_earned_updates(self) -> int:
        """Return how many WINDOW_UPDATEs the peer may send.

        It has earned them by the DATA frames sent to it since the last call.
        """
        earned, self._earned = self._earned, 0
        return earned

    @property
    def blocked(self) -> int:
        """Return the streams that have something to send and may not."""
        return len(self._queues)

    def replies(self, streams: list[int]) -> None:
        """Answer WriteBinlog calls with success."""
        need = REPLY_WINDOW * len(streams)
        if self.window >= need and self.initial >= REPLY_WINDOW and not self._queues:
            self.window -= need
            self._earned += 2 * len(streams)
            self.out.append(kernel.replies(streams, REPLY_PARTS))
            if self._credit:
                for stream in streams:
                    self._credit.pop(stream, None)
            return
        for stream in streams:
            self.out.append(frame(HEADERS, END_HEADERS, stream, _RESPONSE_BLOCK))
            self._queues[stream] = _UNSENT_REPLY
            self._push(stream, _UNSENT_REPLY)

    def queue(self, stream: int, data: bytes | memoryview) -> None:
        """Send `data` on a stream whose HEADERS are out, as its windows allow."""
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = _SendQueue()
        queue.parts.append(memoryview(data))
        self._push(stream, queue)

    def finish(self, stream: int, trailers: bytes) -> None:
        """End the stream behind what it still has to send."""
        queue = self._queues.get(stream)
        if queue is None:
            self._credit.pop(stream, None)
            self.out.append(trailers)
            return
        queue.trailers = trailers
        self._push(stream, queue)

    async def drained(self, stream: int) -> None:
        """Wait until everything queued on the stream is sent.

        CancelledError if the stream goes away.
        """
        queue = self._queues.get(stream)
        if queue is not None:
            queue.drained = asyncio.get_running_loop().create_future()
            await queue.drained

    def drop(self, stream: int) -> None:
        """Drop what a stream that the peer reset had to send."""
        self._credit.pop(stream, None)
        self._ready.pop(stream, None)
        queue = self._queues.pop(stream, None)
        if queue is not None and queue.drained is not None and not queue.drained.done():
            queue.drained.cancel()

    def drop_all(self) -> None:
        """Drop what all streams had to send: the connection is closed."""
        for stream in list(self._queues):
            self.drop(stream)

    def window_update(self, stream: int, increment: int) -> None:
        """Apply a WINDOW_UPDATE of the peer.

        Raises Http2ConnectionError if a window would pass 2^31 - 1.
        """
        if stream == 0:
            self.window += increment
            if self.window > MAX_WINDOW:
                raise Http2ConnectionError(
                    FLOW_CONTROL_ERROR, "the connection's window passes 2^31-1"
                )
            self._serve_ready()
            return
        # updates that crossed the last answer of their stream
        if len(self._credit) > _CREDIT_LIMIT:
            self._credit = {k: v for k, v in self._credit.items() if k in self._queues}
        credit = self._credit.get(stream, 0) + increment
        if self.initial + credit > MAX_WINDOW:
            raise Http2ConnectionError(
                FLOW_CONTROL_ERROR, f"the window of stream {stream} passes 2^31-1"
            )
        self._credit[stream] = credit
        if stream in self._queues:
            self._push(stream, self._queues[stream])

    def initial_window(self, size: int) -> None:
        """Apply the peer's SETTINGS_INITIAL_WINDOW_SIZE.

        It moves the window of every stream, also below zero.
        """
        if size > MAX_WINDOW:
            raise Http2ConnectionError(FLOW_CONTROL_ERROR, f"an initial window of {size} bytes")
        self.initial = size
        self._resized = True

    def serve_resized(self) -> None:
        """Send what a new initial window allows."""
        if not self._resized:
            return
        self._resized = False
        self._ready = {s: None for s in self._queues if self.initial + self._credit.get(s, 0) > 0}
        self._serve_ready()

    def refill(self, room: int) -> bool:
        """Send as much as `room` bytes of the transport allow; return whether anything was."""
        self._room = room
        self._serve_ready()
        return bool(self.out)

    def _serve_ready(self) -> None:
        while self._ready and self.window > 0 and self._room > 0:
            stream = next(iter(self._ready))
            del self._ready[stream]  # to the end of the line, if there is more
            queue = self._queues.get(stream)
            if queue is not None:
                self._push(stream, queue)

    def _push(self, stream: int, queue: _SendQueue) -> None:
        while queue.parts:
            part = queue.parts[0]
            own = self.initial + self._credit.get(stream, 0)
            room = min(self.window, own, MAX_FRAME, self._room)
            if room <= 0:
                if own > 0:
                    self._ready[stream] = None
                return
            if queue is _UNSENT_REPLY:
                queue = self._queues[stream] = _SendQueue()
                queue.parts.append(part)
                queue.trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream, _OK_BLOCK)
            now = part[:room]
            self.out.append(frame(DATA, 0, stream, now))
            self.window -= len(now)
            self._room -= len(now)
            self._earned += 2  # one for the stream, one for the connection
            self._credit[stream] = self._credit.get(stream, 0) - len(now)
            if len(now) == len(part):
                queue.parts.popleft()
            else:
                queue.parts[0] = part[room:]
        if queue.drained is not None and not queue.drained.done():
            queue.drained.set_result(None)
        del self._queues[stream]
        self._ready.pop(stream, None)
        if queue.trailers is not None:
            self._credit.pop(stream, None)
            self.out.append(queue.trailers)

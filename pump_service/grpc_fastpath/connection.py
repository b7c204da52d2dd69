"""One HTTP/2 connection.

WriteBinlog calls are answered here, all those of a read together; others by the bridge.
"""

from __future__ import annotations

import asyncio
import logging
import time

from sluice.pump_service.cluster import ClientConnection
from sluice.pump_service.config import READ, WRITE
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.context import FastPathServer
from sluice.pump_service.grpc_fastpath.frame_handler import FrameHandler
from sluice.pump_service.grpc_fastpath.header_blocks import HeaderBlocks
from sluice.pump_service.grpc_fastpath.hpack import Headers, HpackDecoder, HpackError
from sluice.pump_service.grpc_fastpath.places import FAST_PATH_CONNECTION_BYTES, ConnectionSlot
from sluice.pump_service.grpc_fastpath.requests import is_write
from sluice.pump_service.grpc_fastpath.sender import FlowControlledSender
from sluice.pump_service.grpc_fastpath.wire import FrameTransport

_log = logging.getLogger(__name__)

_OPEN_BYTES = 128  # that an open stream takes besides what came on it
_TASK_FRAMES = 5  # a call other than WriteBinlog costs as much as so many frames
_LAST_CALLS_TIMEOUT_S = 5.0  # between the first GOAWAY and the last
_REPLENISH_BYTES = 1 << 20
_MAX_REFILLS = 16  # of the transport in one turn of the loop, 4 MiB


class FastPathConnection(FrameHandler, asyncio.Protocol):
    """The server side of one connection. Everything runs in the loop's thread."""

    def __init__(self, context: FastPathServer, place: ConnectionSlot) -> None:
        super().__init__(context, place)
        self._called = False  # a first call has come
        self._seen = 0
        self._used = time.monotonic()  # when a call came
        self._leaving = 0.0
        self.origin: ClientConnection | None = None  # unknown over a Unix socket
        self._wire: FrameTransport

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = FrameTransport(transport, self._out)
        self._context.lanes.add(self)
        self._place.is_busy = self._is_waiting
        self._place.end = self._give_way
        # that it takes when nothing is under way
        self._bytes = self._place.size + FAST_PATH_CONNECTION_BYTES
        self._place.resize(self._bytes)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.origin = self._context.ingest.connect(name[0])
        limits = self._limits
        settings = {
            f.SETTING_MAX_CONCURRENT_STREAMS: limits.streams,
            f.SETTING_INITIAL_WINDOW_SIZE: limits.stream_window,
            f.SETTING_MAX_HEADER_LIST_SIZE: limits.header_block,
        }
        transport.write(f.settings(settings) + f.window_update(0, f.MAX_WINDOW - f.DEFAULT_WINDOW))
        if self._context.full:
            self.set_read_paused(on=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.on_lost()
        if self.origin is not None:
            self.origin.close()
        self._context.lanes.discard(self)
        self._bridged.cancel_all()
        self._sender.drop_all()
        self._uploads.close()
        self._rest = b""  # this object may stay until Python collects garbage
        self._blocks = HeaderBlocks(0)
        self._hpack = HpackDecoder()

    def pause_writing(self) -> None:
        self._wire.pause_writing()

    def resume_writing(self) -> None:
        self._wire.resume_writing()
        self.flush()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._wire.closing:
            return
        buf = self._rest + data if self._rest else data
        context = self._context
        if context.places.has_written(self._place):
            self._read(buf)
        elif not context.strangers.read(self._read, buf):
            self._rest = buf
            self._account()
            if not self._wire.is_held("frames"):
                self._wire.set_paused("frames", on=True)
                context.paused_reads.put_off(self._resume)

    def _read(self, buf: bytes) -> None:
        """Handle what came, and answer what can be answered at once."""
        self._behind = False
        try:
            self._rest = self._frames(buf)
        except f.Http2ConnectionError as fault:
            self._fail(fault.code, str(fault))
        except HpackError as error:
            self._fail(f.COMPRESSION_ERROR, str(error))
        self._sender.serve_resized()
        if self._behind or self._allowance.left < 0:
            self._pause_reading()
        self._account()
        if self._last != self._seen:
            self._seen = self._last
            self._called = True
            self._used = time.monotonic()
        if self._records:
            records, self._records = self._records, []
            streams, self._streams = self._streams, []
            self._waiting += len(streams)
            self._context.submit(self, records, streams)
        if self._probes:
            self._place.complete()
            self._sender.replies(self._probes)
            self._context.ingest.observe(0.0, len(self._probes), ok=True)
            self._probes = []
        if self._received >= _REPLENISH_BYTES:
            self._out.append(f.window_update(0, self._received))
            self._received = 0
        if self._out:
            self.flush()

    def _pause_reading(self) -> None:
        """Frames that carry no call may come at a rate.

        Of a client that sends more nothing is read until it is within it and what it sent is
        handled: else what waits here would grow with every read.
        """
        allowance = self._allowance
        if (self._behind or allowance.is_used_up()) and not self._wire.is_held("frames"):
            now = time.monotonic()
            allowance.over_since = allowance.over_since or now
            if now - allowance.over_since > self._limits.over_s:
                text = (
                    f"more frames without calls than are allowed, for {self._limits.over_s:.0f} s"
                )
                self._fail(f.ENHANCE_YOUR_CALM, text)
                return
            self._wire.set_paused("frames", on=True)
            self._context.paused_reads.add(self._resume)

    def _resume(self) -> None:
        if self._wire.closing:
            return
        self._wire.set_paused("frames", on=False)
        if self._rest:
            self._read(self._rest)
        if not self._wire.is_held("frames"):
            self._allowance.over_since = 0.0

    def _account(self) -> None:
        """Count what waits here; end the connection if there is no room for it."""
        sender = self._sender
        held = (
            self._bytes
            + len(self._rest)
            + self._blocks.size
            + self._uploads.held_bytes
            + _OPEN_BYTES * len(self._open)
            + sender.queued_bytes
            + self._wire.unsent
        )
        if held != self._place.size and not self._place.resize(held) and not self._wire.closing:
            self._fail(f.ENHANCE_YOUR_CALM, "the pump keeps too much for connections without calls")

    def _is_waiting(self) -> bool:
        """Return whether the connection has unanswered calls or the process's oldest upload.

        Unanswered calls are those in the store and those being answered by the bridge.
        """
        return bool(
            self._waiting or self._bridged.count or self._context.uploads.is_oldest(self._uploads)
        )

    def _give_way(self) -> None:
        """Close the connection to make room for others."""
        if not self._wire.closing:
            self._out.append(f.goaway(self._last, f.NO_ERROR, "the pump needs the room"))
            self.flush()
            self._wire.closing = True
        self._wire.transport.abort()

    # the context's side

    def answer(self, streams: list[int], error: BaseException | None) -> None:
        """Take the store's verdict on calls of this connection; `flush` sends the answers."""
        self._waiting -= len(streams)
        if self._wire.closing:
            return
        if error is None:
            self._place.mark_writer()
            self._sender.replies(streams)
        else:
            self._out += [f.error_reply(stream, f.GRPC_UNKNOWN, str(error)) for stream in streams]

    def flush(self) -> None:
        """Write what is ready."""
        self._wire.flush()
        if not self._sender.blocked:
            return
        for _ in range(_MAX_REFILLS):
            if not self._sender.refill(self._wire.room):
                break
            self._wire.flush()
        else:  # a quick reader of a large transaction must not hold up the others
            self._context.loop.call_soon(self.flush)
        self._account()  # answers that the client doesn't take

    def set_read_paused(self, *, on: bool) -> None:
        """Stop or go on reading, because the store is full or has room again."""
        self._wire.set_paused("store", on=on)

    @property
    def behind(self) -> bool:
        """Return whether frames of the client wait to be read, a reset of its calls maybe."""
        return self._wire.is_held("frames")

    @property
    def busy(self) -> bool:
        """True while calls are open or unanswered."""
        return bool(self._waiting or self._open or self._bridged)

    def go_away(self) -> None:
        """Tell the client to open no more calls here.

        Those that cross the message are still served.
        """
        if not self._wire.closing:
            self._out.append(f.goaway(f.MAX_WINDOW, f.NO_ERROR, "the pump is shutting down"))
            self.flush()

    def close_if_idle(self, now: float) -> None:
        """Close the connection if it is idle.

        Idle: no first call soon after it opened, or no calls for an hour and a GOAWAY sent. The
        connection of a client that takes no bytes for `stalled_s` is aborted.
        """
        if self._wire.closing:
            return
        self.flush()
        if self._wire.stuck_s(now) > self._limits.stalled_s:
            _log.warning(
                "closing the connection of %s: it took nothing for %.0f s",
                self.peer,
                self._limits.stalled_s,
            )
            self._wire.transport.abort()
            return
        idle = now - self._used
        if self._waiting or self._bridged.count:
            return
        if not self._called:
            if idle > self._limits.first_call_s:
                self._fail(f.NO_ERROR, f"no call in {self._limits.first_call_s:.0f} s")
        elif not self._leaving:
            if idle > self._limits.idle_s:
                self._leaving = now
                self._out.append(f.goaway(f.MAX_WINDOW, f.NO_ERROR, "idle"))
                self.flush()
        elif now - self._leaving > _LAST_CALLS_TIMEOUT_S and idle > _LAST_CALLS_TIMEOUT_S:
            self.close()

    def close(self) -> None:
        """Close for good, after a last GOAWAY with the last stream taken."""
        if not self._wire.closing:
            self._out.append(f.goaway(self._last, f.NO_ERROR))
            self._wire.close()

    # the bridge's side

    @property
    def peer(self) -> str:
        """Return the client's address, for logs."""
        return self._wire.peer

    @property
    def host(self) -> str:
        """Return the client's address without its port."""
        return self.peer.rpartition(":")[0]

    @property
    def sender(self) -> FlowControlledSender:
        """Return where the bridge puts the frames of its answer."""
        return self._sender

    async def sent(self, stream: int) -> None:
        """Wait until all that was queued on the stream has left for the network.

        That is when the client's windows and its socket took it. Raises CancelledError if the
        stream or the connection is closed first.
        """
        await self._sender.drained(stream)
        await self._wire.written()

    def ended(self, stream: int) -> None:
        """Count a stream that the bridge has answered as complete, and flush."""
        self._bridged.ended(stream)
        self._place.complete()
        if not self._wire.closing:
            self.flush()

    def _bridge(self, stream: int, headers: Headers, body: bytes) -> None:
        self._allowance.left -= _TASK_FRAMES
        role = WRITE if is_write(headers) else READ
        if role not in self._place.roles:
            text = (
                f"the client's certificate isn't one of those that may {role} ({role}-allowed-cn)"
            )
            self._out.append(f.error_reply(stream, f.GRPC_PERMISSION_DENIED, text))
            return
        refusal = self._bridged.begin(self, stream, headers, body)
        if refusal is not None:
            self._out.append(refusal)

    def _fail(self, code: int, text: str) -> None:
        _log.warning("closing the connection of %s: %s", self.peer, text)
        self._out.append(f.goaway(self._last, code, text))
        self._wire.close()

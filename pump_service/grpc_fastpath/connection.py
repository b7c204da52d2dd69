"""One HTTP/2 connection.

WriteBinlog calls are answered here, all those of a read together; others by the bridge.
"""

from __future__ import annotations

import asyncio
import logging
import time

from sluice.pump_service import kernel
from sluice.pump_service.cluster import ClientConnection
from sluice.pump_service.config import READ, WRITE
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.allowance import FrameRateLimit
from sluice.pump_service.grpc_fastpath.bridged import ProxiedCalls
from sluice.pump_service.grpc_fastpath.context import FastPathServer
from sluice.pump_service.grpc_fastpath.header_blocks import HeaderBlocks, unpad
from sluice.pump_service.grpc_fastpath.hpack import Headers, HpackDecoder, HpackError
from sluice.pump_service.grpc_fastpath.places import FAST_PATH_CONNECTION_BYTES, ConnectionSlot
from sluice.pump_service.grpc_fastpath.requests import is_write
from sluice.pump_service.grpc_fastpath.sender import FlowControlledSender
from sluice.pump_service.grpc_fastpath.uploads import PartialRequests, message_too_large
from sluice.pump_service.grpc_fastpath.wire import FrameTransport
from sluice.pump_service.ingest import WriteRejected
from sluice.pump_service.store import Record

_log = logging.getLogger(__name__)

_MAX_SHORT_BYTES = 256  # bytes of a DATA frame; larger ones carry something
_BLOCK_BYTES = 64  # of a header block that is new cost as much as a frame
_OPEN_BYTES = 128  # that an open stream takes besides what came on it
_TASK_FRAMES = 5  # a call other than WriteBinlog costs as much as so many frames
_LAST_CALLS_TIMEOUT_S = 5.0  # between the first GOAWAY and the last
_REPLENISH_BYTES = 1 << 20
_MAX_REFILLS = 16  # of the transport in one turn of the loop, 4 MiB


class FastPathConnection(asyncio.Protocol):
    """The server side of one connection. Everything runs in the loop's thread."""

    def __init__(self, context: FastPathServer, place: ConnectionSlot) -> None:
        self._context = context
        self._place = place
        self._limits = context.limits
        self._admit = context.ingest.admit
        self._sender = FlowControlledSender()
        self._out = self._sender.out
        self._hpack = HpackDecoder(max_list_size=self._limits.header_block)
        self._write_headers: Headers | None = None  # of the last WriteBinlog call
        self._write_block = b""  # that stands for them
        self._decoded: Headers | HpackError | None = None  # of the block that comes next
        self._rest = b""
        self._preface = False
        self._called = False  # a first call has come
        self._uploads = PartialRequests(self._limits, context.uploads, self._out, self.flush)
        self._open = self._uploads.open
        self._last = self._seen = 0
        self._received = 0
        self._records: list[Record] = []
        self._streams: list[int] = []
        self._probes: list[int] = []
        self._waiting = 0  # calls in the store
        self._bridged = ProxiedCalls(context)
        # of frames that carry no call
        self._allowance = FrameRateLimit(self._limits.own_frames, context.idle_frames)
        self._behind = False  # complete frames wait in _rest for an allowance
        self._used = time.monotonic()  # when a call came
        self._leaving = 0.0
        self._blocks = HeaderBlocks(self._limits.header_block)
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
            self.data_received(b"")
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
        """End for the sake of others."""
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
        """Where the bridge puts the frames of its answer."""
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

    # frames

    def _frames(self, buf: bytes) -> bytes:
        """Handle every complete frame of `buf`, and return what is left of it."""
        pos = 0
        end = len(buf)
        if not self._preface:
            if not f.PREFACE.startswith(buf[: len(f.PREFACE)]):
                raise f.Http2ConnectionError(f.PROTOCOL_ERROR, "this is not the HTTP/2 preface")
            if end < len(f.PREFACE):
                return buf
            self._preface = True
            pos = len(f.PREFACE)
        unpack = f.HEAD.unpack_from
        opened = self._open
        allowance = self._allowance
        take = self._submit_request
        blocks = self._blocks
        largest = min(self._limits.message + 5, f.MAX_FRAME)
        while end - pos >= 9:
            if allowance.left < 0 and allowance.is_used_up():
                self._behind = True
                break
            if kernel.IS_COMPILED and buf[pos + 3] <= f.HEADERS:
                pos = self._fast_calls(buf, pos, largest)
                if end - pos < 9:
                    break
            head, flags, stream = unpack(buf, pos)
            kind = head & 0xFF
            length = head >> 8
            if length > f.MAX_FRAME:
                raise f.Http2ConnectionError(
                    f.FRAME_SIZE_ERROR, f"a frame of {length} bytes, {f.MAX_FRAME} are allowed"
                )
            start = pos + 9
            stop = start + length
            if stop > end:
                break
            if blocks.stream and kind != f.CONTINUATION:
                raise f.Http2ConnectionError(
                    f.PROTOCOL_ERROR, f"frame type {kind} inside a header block"
                )
            if kind == f.DATA:
                # Most calls: the whole message in one frame.
                if (
                    flags == f.END_STREAM
                    and 5 <= length <= largest
                    and opened.get(stream, self) is None
                ):
                    self._received += length
                    del opened[stream]
                    if (
                        buf[start] == 0
                        and int.from_bytes(buf[start + 1 : start + 5], "big") == length - 5
                    ):
                        take(stream, buf, start + 5, stop)
                    else:
                        self._message(stream, buf[start:stop])
                else:
                    self._data(flags, stream, buf[start:stop])
            elif kind == f.HEADERS:
                if flags & f.END_HEADERS and not flags & (f.PADDED | f.PRIORITY_FLAG):
                    self._headers(stream, flags, buf[start:stop])
                else:
                    block = blocks.begin(stream, flags, buf[start:stop])
                    if block is not None:
                        self._headers(stream, flags, block)
            else:
                self._control(kind, flags, stream, buf[start:stop])
            pos = stop
        return buf[pos:]

    def _fast_calls(self, buf: bytes, pos: int, largest: int) -> int:
        """Take the calls at buf[pos:] that are as nearly all are, all of them at once.

        Where they end.
        """
        room = self._limits.streams - self._unfinished()
        if self._blocks.stream or room <= 0:
            return pos
        known = (
            self._write_headers is not None
            and self._hpack.recall(self._write_block) is self._write_headers
        )
        pos, self._last, received = kernel.calls(
            buf,
            pos,
            self._write_block if known else None,
            self._opens,
            self._open,
            self._context.ingest.fast_admission(),
            largest,
            self._last,
            room,
            self._records,
            self._streams,
        )
        self._received += received
        return pos

    def _opens(self, block: bytes) -> bool:
        """Return whether a header block is that of a WriteBinlog call.

        If not, `_headers` comes next.
        """
        try:
            headers = self._decode(block)
        except HpackError as error:
            self._decoded = error
            return False
        if is_write(headers) and WRITE in self._place.roles:
            self._write_headers, self._write_block = headers, block
            return True
        self._decoded = headers
        return False

    def _decode(self, block: bytes) -> Headers:
        known = self._hpack.recall(block)
        if known is not None:
            return known
        self._allowance.left -= len(block) // _BLOCK_BYTES
        return self._hpack.decode(block)

    def _unfinished(self) -> int:
        """Count open calls: being received, in the store, with the bridge, not taken yet."""
        here = len(self._open) + len(self._streams) + len(self._probes)
        return here + self._waiting + self._bridged.count + self._sender.blocked

    def _headers(self, stream: int, flags: int, block: bytes) -> None:
        decoded, self._decoded = self._decoded, None
        if isinstance(decoded, HpackError):
            raise decoded
        # Each block just once, or the table goes out of step.
        headers = decoded if decoded is not None else self._decode(block)
        if stream <= self._last:
            self._allowance.left -= 1
            if stream in self._open and flags & f.END_STREAM:  # trailers of the client
                self._data(f.END_STREAM, stream, b"")
            elif stream == 0 or stream in self._open:
                raise f.Http2ConnectionError(
                    f.PROTOCOL_ERROR, f"HEADERS on stream {stream} out of turn"
                )
            return
        if not stream & 1:
            raise f.Http2ConnectionError(f.PROTOCOL_ERROR, f"stream {stream} isn't a client's")
        self._last = stream
        opened = self._open
        if self._unfinished() >= self._limits.streams:
            self._out.append(f.reset(stream, f.REFUSED_STREAM))
            self._allowance.left -= 1
            return
        if headers is self._write_headers and not flags & f.END_STREAM:
            opened[stream] = None  # as `begin`; nearly every call is this one
            return
        writes = is_write(headers) and WRITE in self._place.roles
        if writes:
            self._write_headers, self._write_block = (
                headers,
                block,
            )  # the decoder gives the same object for the same bytes
        self._uploads.begin(stream, None if writes else headers)
        if flags & f.END_STREAM:
            self._data(f.END_STREAM, stream, b"")

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        length = len(payload)
        self._received += length
        if flags & f.PADDED:
            payload = unpad(payload, flags)
        if stream not in self._open:
            if stream == 0 or stream > self._last:
                raise f.Http2ConnectionError(
                    f.PROTOCOL_ERROR, f"DATA on stream {stream}, which isn't open"
                )
            self._allowance.left -= 1
            return  # answered or reset already
        if length < _MAX_SHORT_BYTES and not flags & f.END_STREAM:
            self._allowance.left -= 1
        upload = self._uploads.add(stream, payload, length, end=bool(flags & f.END_STREAM))
        if upload is None:
            return
        if upload.headers is None:
            self._message(stream, upload.body())
        else:
            self._bridge(stream, upload.headers, upload.body())

    def _message(self, stream: int, body: bytes) -> None:
        """Take a complete WriteBinlog request body: five bytes of gRPC prefix and the message."""
        size = int.from_bytes(body[1:5], "big")
        if len(body) < 5 or size != len(body) - 5:
            text = (
                f"a WriteBinlog call carries one message; its body of {len(body)} bytes is not one"
            )
            self._allowance.left -= 1
            self._out.append(f.error_reply(stream, f.GRPC_INTERNAL, text))
        elif body[0]:
            self._allowance.left -= 1
            self._out.append(
                f.error_reply(
                    stream, f.GRPC_UNIMPLEMENTED, "WriteBinlog takes no compressed messages"
                )
            )
        elif size > self._limits.message:
            self._allowance.left -= 1
            self._out.append(message_too_large(stream, size, self._limits.message))
        else:
            self._submit_request(stream, body, 5, len(body))

    def _submit_request(self, stream: int, data: bytes, begin: int, end: int) -> None:
        """Queue the WriteBinlogReq at data[begin:end] for the store with this read's others."""
        try:
            record = self._admit(data, begin, end)
        except WriteRejected as refusal:
            self._out.append(f.error_reply(stream, f.GRPC_UNKNOWN, refusal.text))
            self._allowance.left -= 1
            self._context.ingest.count_rejected()
            return
        if record is None:
            self._probes.append(stream)
            self._allowance.left -= 1
        else:
            self._records.append(record)
            self._streams.append(stream)

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

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self._allowance.left -= 1
        if kind == f.PING:
            if size != 8 or stream:
                raise f.Http2ConnectionError(
                    f.FRAME_SIZE_ERROR, "a PING must have 8 bytes on stream 0"
                )
            if not flags & f.ACK:
                self._out.append(f.frame(f.PING, f.ACK, 0, payload))
        elif kind == f.WINDOW_UPDATE:
            increment = int.from_bytes(payload, "big") & f.MAX_WINDOW
            if size != 4:
                raise f.Http2ConnectionError(
                    f.FRAME_SIZE_ERROR, "a WINDOW_UPDATE must have 4 bytes"
                )
            if increment == 0 or stream > self._last:
                raise f.Http2ConnectionError(
                    f.PROTOCOL_ERROR, f"WINDOW_UPDATE of {increment} on stream {stream}"
                )
            self._allowance.earn(self._sender.pop_earned_updates())
            self._sender.window_update(stream, increment)
        elif kind == f.SETTINGS:
            self._settings(flags, stream, payload)
        elif kind == f.RST_STREAM:
            if size != 4 or stream == 0 or stream > self._last:
                raise f.Http2ConnectionError(
                    f.PROTOCOL_ERROR, f"RST_STREAM of {size} bytes on stream {stream}"
                )
            if stream in self._open:
                self._uploads.drop(stream)
            self._bridged.cancel(stream)
            self._sender.drop(stream)
        elif kind == f.CONTINUATION:
            whole = self._blocks.continue_block(stream, flags, payload)
            if whole is not None:
                self._headers(stream, *whole)
        elif kind == f.PUSH_PROMISE:
            raise f.Http2ConnectionError(f.PROTOCOL_ERROR, "a client can't push")
        # PRIORITY, the client's GOAWAY and unknown types ask for nothing.

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise f.Http2ConnectionError(f.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & f.ACK:
            return
        if len(payload) % 6:
            raise f.Http2ConnectionError(f.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        for at in range(0, len(payload), 6):
            key = int.from_bytes(payload[at : at + 2], "big")
            if key == f.SETTING_INITIAL_WINDOW_SIZE:
                self._sender.initial_window(int.from_bytes(payload[at + 2 : at + 6], "big"))
        self._out.append(f.frame(f.SETTINGS, f.ACK, 0))

    def _fail(self, code: int, text: str) -> None:
        _log.warning("closing the connection of %s: %s", self.peer, text)
        self._out.append(f.goaway(self._last, code, text))
        self._wire.close()

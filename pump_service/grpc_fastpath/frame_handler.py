"""Handle the frames of one HTTP/2 connection: begin, complete and reset its calls."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sluice.pump_service import kernel
from sluice.pump_service.config import WRITE
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.allowance import FrameRateLimit
from sluice.pump_service.grpc_fastpath.bridged import ProxiedCalls
from sluice.pump_service.grpc_fastpath.context import FastPathServer
from sluice.pump_service.grpc_fastpath.header_blocks import HeaderBlocks, unpad
from sluice.pump_service.grpc_fastpath.hpack import Headers, HpackDecoder, HpackError
from sluice.pump_service.grpc_fastpath.places import ConnectionSlot
from sluice.pump_service.grpc_fastpath.requests import is_write
from sluice.pump_service.grpc_fastpath.sender import FlowControlledSender
from sluice.pump_service.grpc_fastpath.uploads import PartialRequests, message_too_large
from sluice.pump_service.ingest import WriteRejected
from sluice.pump_service.store import Record

_MAX_SHORT_BYTES = 256  # bytes of a DATA frame; larger ones carry something
_BLOCK_BYTES = 64  # of a header block that is new cost as much as a frame


class FrameHandler(ABC):
    """Keep the state of a connection's calls, and change it frame by frame.

    Complete WriteBinlog requests wait in `_records` with their `_streams` (or in `_probes`, if they
    have no binlog) until the read is handled. Answers that are due at once wait in `_out`.
    """

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
        self._uploads = PartialRequests(self._limits, context.uploads, self._out, self.flush)
        self._open = self._uploads.open
        self._last = 0  # the client's latest stream
        self._received = 0
        self._records: list[Record] = []
        self._streams: list[int] = []
        self._probes: list[int] = []
        self._waiting = 0  # calls in the store
        self._bridged = ProxiedCalls(context)
        # of frames that carry no call
        self._allowance = FrameRateLimit(self._limits.own_frames, context.idle_frames)
        self._behind = False  # complete frames wait in _rest for an allowance
        self._blocks = HeaderBlocks(self._limits.header_block)

    @abstractmethod
    def flush(self) -> None:
        """Write what is ready."""

    @abstractmethod
    def _bridge(self, stream: int, headers: Headers, body: bytes) -> None:
        """Pass on a call that isn't WriteBinlog."""

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

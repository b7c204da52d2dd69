"""Encode HTTP/2 frames (RFC 9113) as the lane needs them, and ready-made WriteBinlog answers."""

from __future__ import annotations

from struct import Struct
from typing import Final

from sluice.errors import Signal
from sluice.pump_service.grpc_fastpath.hpack import Headers, encode_headers

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD: Final = Struct(">IBI")  # length << 8 | type, flags, stream id

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

SETTING_HEADER_TABLE_SIZE: Final = 1
SETTING_MAX_CONCURRENT_STREAMS: Final = 3
SETTING_INITIAL_WINDOW_SIZE: Final = 4
SETTING_MAX_FRAME_SIZE: Final = 5
SETTING_MAX_HEADER_LIST_SIZE: Final = 6

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

MAX_FRAME: Final = 16384  # what both sides may send without asking
DEFAULT_WINDOW: Final = 65535
MAX_WINDOW: Final = 2**31 - 1

GRPC_OK: Final = 0
GRPC_CANCELLED: Final = 1
GRPC_UNKNOWN: Final = 2
GRPC_PERMISSION_DENIED: Final = 7
GRPC_RESOURCE_EXHAUSTED: Final = 8
GRPC_UNIMPLEMENTED: Final = 12
GRPC_INTERNAL: Final = 13
GRPC_UNAVAILABLE: Final = 14


class Http2ConnectionError(Signal):
    """The peer broke HTTP/2 so that the connection can't go on: `code` goes into the GOAWAY."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """Return one frame; `payload` has at most 16,384 bytes."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(
        SETTINGS,
        0,
        0,
        b"".join(k.to_bytes(2, "big") + v.to_bytes(4, "big") for k, v in values.items()),
    )


def window_update(stream: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def reset(stream: int, code: int) -> bytes:
    """Return an RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    """Return a GOAWAY frame with `text` as debug data."""
    return frame(
        GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()[:512]
    )


def header_frames(stream: int, headers: Headers, *, end_stream: bool) -> bytes:
    """HEADERS, and CONTINUATION where the block is long."""
    block = encode_headers(headers)
    flags = END_STREAM if end_stream else 0
    if len(block) <= MAX_FRAME:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    parts = [block[i : i + MAX_FRAME] for i in range(0, len(block), MAX_FRAME)]
    out = [frame(HEADERS, flags, stream, parts[0])]
    out += [frame(CONTINUATION, 0, stream, part) for part in parts[1:-1]]
    out.append(frame(CONTINUATION, END_HEADERS, stream, parts[-1]))
    return b"".join(out)


RESPONSE_HEADERS: Final[Headers] = ((b":status", b"200"), (b"content-type", b"application/grpc"))
OK_TRAILERS: Final[Headers] = ((b"grpc-status", b"0"),)
EMPTY_MESSAGE: Final = b"\0\0\0\0\0"  # WriteBinlogResp{} behind its gRPC prefix


def _reply_parts() -> tuple[bytes, bytes, bytes, bytes]:
    """Return the bytes before, between and after the three stream ids of a reply."""
    mark = 0x41424344
    whole = (
        header_frames(mark, RESPONSE_HEADERS, end_stream=False)
        + frame(DATA, 0, mark, EMPTY_MESSAGE)
        + header_frames(mark, OK_TRAILERS, end_stream=True)
    )
    a, b, c, d = whole.split(mark.to_bytes(4, "big"))
    return a, b, c, d


REPLY_PARTS: Final = _reply_parts()  # stream_id.join(REPLY_PARTS) is the whole answer
REPLY_WINDOW: Final = len(EMPTY_MESSAGE)  # flow-controlled bytes of one answer


def percent(text: str) -> bytes:
    """Return the encoding of grpc-message: UTF-8, and %XX for all but printable ASCII."""
    return b"".join(
        bytes([b]) if 0x20 <= b <= 0x7E and b != 0x25 else b"%%%02X" % b
        for b in text.encode("utf-8", "replace")[:4096]
    )


def status_trailers(status: int, text: str) -> Headers:
    """Return the trailers of a failed call."""
    return ((b"grpc-status", b"%d" % status), (b"grpc-message", percent(text)))


def error_reply(stream: int, status: int, text: str) -> bytes:
    """Return a trailers-only answer: no flow-controlled bytes."""
    trailers = status_trailers(status, text)
    if status == GRPC_UNIMPLEMENTED:
        trailers += ((b"grpc-accept-encoding", b"identity"),)
    return header_frames(stream, RESPONSE_HEADERS + trailers, end_stream=True)

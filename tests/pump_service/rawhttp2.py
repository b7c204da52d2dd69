"""A raw HTTP/2 client: sends what the test says, right or wrong, and collects the frames that come
back.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field

from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.hpack import HpackDecoder, encode_headers

CALL = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/binlog.Pump/WriteBinlog"),
    (b":authority", b"pump"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


def grpc_body(message: bytes, compressed: int = 0) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


@dataclass
class Answer:
    """What came on a stream."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> str | None:
        return self.headers.get("grpc-status")


class RawClient:
    def __init__(
        self, address: str, settings: bytes | None = None, preface: bytes = f.PREFACE
    ) -> None:
        host, port = address.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), 10)
        self.frames: list[tuple[int, int, int, bytes]] = []
        self.answers: dict[int, Answer] = {}
        self.closed = False
        self.goaway: tuple[int, str] | None = None
        self._rest = b""
        self._hpack = HpackDecoder()
        self.ack = True
        self.sock.sendall(preface + (f.settings({}) if settings is None else settings))

    def send(self, *frames: bytes) -> None:
        try:
            self.sock.sendall(b"".join(frames))
        except OSError:
            self.closed = True

    def call(self, stream: int, message: bytes, headers=CALL) -> None:
        """A whole call, DATA cut as frames need it."""
        self.send(f.frame(f.HEADERS, f.END_HEADERS, stream, encode_headers(headers)))
        self.body(stream, grpc_body(message))

    def body(self, stream: int, body: bytes, end: bool = True) -> None:
        parts = [body[i : i + f.MAX_FRAME] for i in range(0, len(body), f.MAX_FRAME)] or [b""]
        for i, part in enumerate(parts):
            self.send(
                f.frame(f.DATA, f.END_STREAM if end and i == len(parts) - 1 else 0, stream, part)
            )

    def read(self, seconds: float) -> bool:
        """Read once; False if nothing came or the connection ended."""
        self.sock.settimeout(seconds)
        try:
            data = self.sock.recv(65536)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return False
        buf = self._rest + data
        while len(buf) >= 9:
            head, flags, stream = f.HEAD.unpack_from(buf)
            stop = 9 + (head >> 8)
            if len(buf) < stop:
                break
            self._frame(head & 0xFF, flags, stream, buf[9:stop])
            buf = buf[stop:]
        self._rest = buf
        return True

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.frames.append((kind, flags, stream, payload))
        answer = self.answers.setdefault(stream, Answer())
        if kind == f.HEADERS:
            answer.headers |= {k.decode(): v.decode() for k, v in self._hpack.decode(payload)}
        elif kind == f.DATA:
            answer.body += payload
        elif kind == f.RST_STREAM:
            answer.reset = int.from_bytes(payload, "big")
        elif kind == f.GOAWAY:
            self.goaway = (int.from_bytes(payload[4:8], "big"), payload[8:].decode())
        elif kind == f.SETTINGS and not flags & f.ACK and self.ack:
            self.send(f.frame(f.SETTINGS, f.ACK, 0))
        if kind in (f.HEADERS, f.DATA) and flags & f.END_STREAM:
            answer.ended = True

    def answer(self, stream: int, seconds: float = 60) -> Answer:
        """Wait for the end of a stream."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.closed:
            answer = self.answers.get(stream)
            if answer is not None and (answer.ended or answer.reset is not None):
                return answer
            self.read(max(until - time.monotonic(), 0.01))
        raise AssertionError(
            f"no answer on stream {stream}: {self.frames} goaway {self.goaway} closed {self.closed}"
        )

    def wait_closed(self, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not self.closed:
            assert time.monotonic() < until, "the connection stays open"
            self.read(0.2)

    def wait_frame(self, kind: int, seconds: float = 60) -> tuple[int, int, int, bytes]:
        until = time.monotonic() + seconds
        while True:
            for found in self.frames:
                if found[0] == kind:
                    return found
            assert time.monotonic() < until and not self.closed, f"no frame of type {kind}"
            self.read(0.2)

    def close(self) -> None:
        self.sock.close()

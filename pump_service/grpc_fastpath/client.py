"""Generate load: unary calls of one method over one HTTP/2 connection, cheap for the sender.

Blocking sockets and no threads: `send` queues requests and `receive` returns the answers received
so far. It checks each answer's status, so a failed call isn't counted as a success.
"""

from __future__ import annotations

import socket

from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.hpack import HpackDecoder, encode_headers


class FastPathClient:
    """One connection to `host:port`. `timeout_s` bounds connecting and each wait for answers."""

    def __init__(
        self, host: str, port: int, path: str = "/binlog.Pump/WriteBinlog", timeout_s: float = 30.0
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._block = encode_headers(
            (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", path.encode()),
                (b":authority", f"{host}:{port}".encode()),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
            )
        )
        # HEADERS, 4 bytes of stream id, block, start of the DATA frame's head.
        self._head = f.HEAD.pack(len(self._block) << 8 | f.HEADERS, f.END_HEADERS, 0)[:5]
        self._next = 1
        self._rest = b""
        self._hpack = HpackDecoder()
        self._window = f.DEFAULT_WINDOW
        self._stream_window = f.DEFAULT_WINDOW
        self._consumed = 0
        self._pending: list[bytes] = []
        self._early: list[tuple[int, str]] = []  # answers that came while sending
        self._socket.sendall(
            f.PREFACE + f.settings({}) + f.window_update(0, f.MAX_WINDOW - f.DEFAULT_WINDOW)
        )

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def send(self, messages: list[bytes]) -> list[int]:
        """Start one call a message; the streams' ids.

        A message must fit in one frame and the stream's window.
        """
        out = self._pending
        streams = []
        for message in messages:
            size = len(message) + 5
            if size > min(f.MAX_FRAME, self._stream_window):
                raise ValueError(f"a message of {len(message)} bytes doesn't fit in one frame")
            while self._window < size:
                self._wait_for_window()
            self._window -= size
            stream = self._next
            self._next += 2
            ident = stream.to_bytes(4, "big")
            out += [
                self._head,
                ident,
                self._block,
                f.HEAD.pack(size << 8 | f.DATA, f.END_STREAM, stream),
                b"\0",
                len(message).to_bytes(4, "big"),
                message,
            ]
            streams.append(stream)
        self._flush()
        return streams

    def receive(self) -> list[tuple[int, str]]:
        """Wait for at least one answer: (stream, error text or "") of all that came.

        ConnectionError if it ends.
        """
        answers, self._early = self._early, []
        while not answers:
            self._read(answers)
            self._flush()
        return answers

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _flush(self) -> None:
        if self._pending:
            self._socket.sendall(b"".join(self._pending))
            self._pending.clear()

    def _wait_for_window(self) -> None:
        self._flush()
        self._read(self._early)

    def _read(self, answers: list[tuple[int, str]]) -> None:
        data = self._socket.recv(262144)
        if not data:
            raise ConnectionError("the pump closed the connection")
        buf = self._rest + data
        pos = 0
        end = len(buf)
        while end - pos >= 9:
            head, flags, stream = f.HEAD.unpack_from(buf, pos)
            stop = pos + 9 + (head >> 8)
            if stop > end:
                break
            kind = head & 0xFF
            if kind == f.HEADERS:
                headers = self._hpack.decode(buf[pos + 9 : stop])
                if flags & f.END_STREAM:
                    answers.append(
                        (stream, "" if f.OK_TRAILERS[0] in headers else _error(dict(headers)))
                    )
            elif kind == f.DATA:
                self._consumed += stop - pos - 9
            elif kind != f.WINDOW_UPDATE or stream:
                self._control(kind, flags, stream, buf[pos + 9 : stop], answers)
            else:
                self._window += int.from_bytes(buf[pos + 9 : stop], "big")
            pos = stop
        self._rest = buf[pos:]
        if self._consumed > 1 << 20:
            self._pending.append(f.window_update(0, self._consumed))
            self._consumed = 0

    def _control(
        self, kind: int, flags: int, stream: int, payload: bytes, answers: list[tuple[int, str]]
    ) -> None:
        if kind == f.SETTINGS and not flags & f.ACK:
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at : at + 2], "big") == f.SETTING_INITIAL_WINDOW_SIZE:
                    self._stream_window = int.from_bytes(payload[at + 2 : at + 6], "big")
            self._pending.append(f.frame(f.SETTINGS, f.ACK, 0))
        elif kind == f.PING and not flags & f.ACK:
            self._pending.append(f.frame(f.PING, f.ACK, 0, payload))
        elif kind == f.RST_STREAM:
            answers.append((stream, f"stream reset, code {int.from_bytes(payload, 'big')}"))
        elif kind == f.GOAWAY and int.from_bytes(payload[4:8], "big"):
            raise ConnectionError(f"GOAWAY: {payload[8:].decode('utf-8', 'replace')}")


def _error(headers: dict[bytes, bytes]) -> str:
    status = headers.get(b"grpc-status", b"?").decode()
    return f"status {status}: {headers.get(b'grpc-message', b'').decode('latin-1')}"

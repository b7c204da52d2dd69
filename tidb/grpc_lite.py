"""gRPC calls for callers that make many small ones, in their thread, over one socket.

A unary call of grpcio costs half a millisecond of CPU time and wakes four threads; of the same call
here the socket is most. It handles the usual case and nothing else: no TLS, answers with status OK,
no compression, blocks of headers in one frame. Anything else, a failure included, raises
UseFullGrpc. Then the caller makes the same call by grpcio, which handles it. So it is for calls
that may be made twice.
"""

from __future__ import annotations

import contextlib
import socket
import time
from struct import Struct

from sluice.errors import Signal
from sluice.tidb.rpc import target

__all__ = ["UnaryConnection", "UnaryEndpoint", "UseFullGrpc"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = Struct(">IBI")  # length << 8 | type, flags, stream
_SETTING = Struct(">HI")
_TIMEVAL = Struct("@ll")
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_PADDED, _PRIORITY = 8, 32
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW = 1, 2, 4
_DEFAULT_WINDOW = 65_535
_RECEIVE_WINDOW_BYTES = 16 << 20
_MAX_SEND_BYTES = 16_384
_MAX_ANSWER_BYTES = 8 << 20
_STATUS = (b"grpc-status", bytes.fromhex("9acac8b21234da8f"))  # plain, and by HPACK's Huffman code
_OK = (b"0", b"\x07")
_CONNECT_TIMEOUT_S = 0.2
_RETRY_INTERVAL_S = 10.0


class UseFullGrpc(Signal):
    """The call isn't a usual one, or failed: make it by grpcio."""


class _Stream:
    """A call under way."""

    __slots__ = ("consumed", "data", "is_over", "window")

    def __init__(self, window: int) -> None:
        self.data = bytearray()
        self.is_over = False
        self.window = window
        self.consumed = 0


class UnaryConnection:
    """One HTTP/2 connection, of one thread.

    Calls may be under way side by side. After a UseFullGrpc it is closed.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        """Create the unary connection.

        `address`: host:port; `timeout_s`: how long an answer may take. Raises UseFullGrpc.
        """
        host, _, port = address.rpartition(":")
        self._authority = address.encode()
        self._timeout_s = timeout_s
        self._blocks: dict[str, bytes] = {}
        self._streams: dict[int, _Stream] = {}
        self._next = 1
        self._rest = b""
        self._window, self._stream_window = _DEFAULT_WINDOW, _DEFAULT_WINDOW
        self._consumed = 0
        settings = b"".join(
            _SETTING.pack(*pair)
            for pair in (
                (_HEADER_TABLE_SIZE, 0),
                (_ENABLE_PUSH, 0),
                (_INITIAL_WINDOW, _RECEIVE_WINDOW_BYTES),
            )
        )
        try:
            self._socket = socket.create_connection(
                (host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S
            )
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The system keeps the time: Python's own way to is two calls of it more for each that
            # sends or receives.
            packed = _TIMEVAL.pack(int(timeout_s), int(timeout_s % 1 * 1e6) or 1)
            for which in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, which, packed)
            self._socket.settimeout(None)
            first = (
                _PREFACE
                + _frame(_SETTINGS, 0, 0, settings)
                + _window_update(0, _RECEIVE_WINDOW_BYTES - _DEFAULT_WINDOW)
            )
            self._socket.sendall(first)
        except (OSError, ValueError) as error:
            raise UseFullGrpc(f"no connection to {address}: {error}") from error

    def begin(self, path: str, message: bytes, *, more: bool = False) -> int:
        """Begin a call with this request; with `more` its requests don't end here.

        Returns its number.
        """
        stream = self._next
        self._next += 2
        self._streams[stream] = _Stream(self._stream_window)
        block = self._blocks.get(path)
        if block is None:
            block = self._blocks[path] = _header_block(path, self._authority)
        self._send_message(
            stream, message, before=_frame(_HEADERS, _END_HEADERS, stream, block), more=more
        )
        return stream

    def send(self, stream: int, message: bytes) -> None:
        """Send one more request of a call that was begun with `more`."""
        self._send_message(stream, message, more=True)

    def receive(self, stream: int) -> bytes:
        """Return the next answer of a call that goes on."""
        return self._await_message(stream, time.monotonic() + self._timeout_s)

    def finish(self, stream: int) -> bytes:
        """Return the only answer of a call, once its status has come."""
        until = time.monotonic() + self._timeout_s
        answer = self._await_message(stream, until)
        call = self._streams[stream]
        while not call.is_over:
            self._read(until)
        if call.data:
            self._fail("a second answer came")
        del self._streams[stream]
        return answer

    def close(self) -> None:
        """Close the connection; a thread that waits for an answer gets an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _fail(self, why: str) -> None:
        self.close()
        raise UseFullGrpc(why)

    def _send_message(
        self, stream: int, message: bytes, *, before: bytes = b"", more: bool
    ) -> None:
        call, size = self._streams[stream], len(message) + 5
        if size > min(_MAX_SEND_BYTES, self._window, call.window):
            self._fail("no room to send it")
        self._window -= size
        call.window -= size
        body = b"\0" + len(message).to_bytes(4, "big") + message
        try:
            self._socket.sendall(before + _frame(_DATA, 0 if more else _END_STREAM, stream, body))
        except OSError as error:
            self._fail(str(error))

    def _await_message(self, stream: int, until: float) -> bytes:
        call = self._streams[stream]
        data = call.data
        while len(data) < 5 or len(data) < 5 + int.from_bytes(data[1:5], "big"):
            if call.is_over or len(data) > _MAX_ANSWER_BYTES:
                self._fail("no answer, or a large one")
            self._read(until)
        if data[0]:
            self._fail("a compressed answer")
        end = 5 + int.from_bytes(data[1:5], "big")
        message = bytes(data[5:end])
        del data[:end]
        return message

    def _read(self, until: float) -> None:
        """Take in what comes next."""
        try:
            if time.monotonic() >= until:
                raise TimeoutError("nothing came")
            came = self._socket.recv(262_144)
        except OSError as error:
            self._fail(str(error))
        if not came:
            self._fail("the other side hung up")
        data, at = self._rest + came, 0
        while len(data) - at >= _HEAD.size:
            head, flags, stream = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + (head >> 8)
            if end > len(data):
                break
            self._handle_frame(head & 0xFF, flags, stream, data[at + _HEAD.size : end])
            at = end
        self._rest = data[at:]

    def _handle_frame(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        call = self._streams.get(stream)
        if kind in (_DATA, _HEADERS) and flags & (_PADDED | _PRIORITY):
            self._fail("padding, or priorities")
        if kind == _DATA:
            self._count(stream, call, len(content))
            if call is not None:
                call.data += content
                if flags & _END_STREAM:
                    self._fail("the answer ends without a status")
        elif kind == _HEADERS:
            if not flags & _END_HEADERS:
                self._fail("a block of headers in several frames")
            if flags & _END_STREAM and call is not None:
                if not _says_ok(content):
                    self._fail("the call failed")
                call.is_over = True
        elif kind == _SETTINGS and not flags & _ACK:
            self._apply_settings(content)
        elif kind == _PING and not flags & _ACK:
            self._reply(_frame(_PING, _ACK, 0, content))
        elif kind == _WINDOW_UPDATE and len(content) == 4:
            more = int.from_bytes(content, "big")
            if not stream:
                self._window += more
            elif call is not None:
                call.window += more
        elif kind == _GOAWAY or (kind == _RST_STREAM and call is not None):
            self._fail("the other side ends it")

    def _apply_settings(self, content: bytes) -> None:
        for name, value in _SETTING.iter_unpack(
            content[: len(content) // _SETTING.size * _SETTING.size]
        ):
            if name == _INITIAL_WINDOW:
                for call in self._streams.values():
                    call.window += value - self._stream_window
                self._stream_window = value
        self._reply(_frame(_SETTINGS, _ACK, 0))

    def _count(self, stream: int, call: _Stream | None, size: int) -> None:
        """Count received bytes, and let the other side send as many again now and then."""
        self._consumed += size
        if self._consumed >= _RECEIVE_WINDOW_BYTES // 2:
            self._reply(_window_update(0, self._consumed))
            self._consumed = 0
        if call is not None:
            call.consumed += size
            if call.consumed >= _RECEIVE_WINDOW_BYTES // 2:
                self._reply(_window_update(stream, call.consumed))
                call.consumed = 0

    def _reply(self, frame: bytes) -> None:
        try:
            self._socket.sendall(frame)
        except OSError as error:
            self._fail(str(error))


class UnaryEndpoint:
    """The connection to one address, made when it is wanted.

    After a UseFullGrpc it isn't tried again for a while. Of one thread at a time.
    """

    def __init__(self, url: str, timeout_s: float = 1.0) -> None:
        """Create the unary endpoint; `url` as for `sluice.tidb.rpc.open_channel`.

        `timeout_s`: how long an answer may take.
        """
        self.url = url
        self._timeout_s = timeout_s
        self._connection: UnaryConnection | None = None
        self._again = float("inf") if url.startswith("https://") else 0.0

    def connection(self) -> UnaryConnection | None:
        """Return the connection; None where calls are better made by grpcio."""
        if self._connection is None and time.monotonic() >= self._again:
            self._again = time.monotonic() + _RETRY_INTERVAL_S
            with contextlib.suppress(UseFullGrpc):
                self._connection = UnaryConnection(target(self.url), self._timeout_s)
        return self._connection

    def call(self, path: str, request: bytes) -> bytes | None:
        """Return the answer to a call; None where grpcio has to make it."""
        connection = self.connection()
        if connection is None:
            return None
        try:
            return connection.finish(connection.begin(path, request))
        except UseFullGrpc:
            self.failed()
            return None

    def failed(self) -> None:
        """Record that the connection raised UseFullGrpc."""
        self.close()
        self._again = time.monotonic() + _RETRY_INTERVAL_S

    def close(self) -> None:
        """Hang up; `connection` makes another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return _HEAD.pack(len(content) << 8 | kind, flags, stream) + content


def _window_update(stream: int, more: int) -> bytes:
    return _frame(_WINDOW_UPDATE, 0, stream, more.to_bytes(4, "big"))


def _header_block(path: str, authority: bytes) -> bytes:
    """Return the headers of a call, by HPACK: plain, and never to be indexed."""

    def literal(name: int | bytes, value: bytes) -> bytes:
        begin = bytes((name,)) if isinstance(name, int) else b"\0" + _text(name)
        return begin + _text(value)

    return (
        b"\x83\x86"  # :method POST, :scheme http
        + literal(4, path.encode())
        + literal(1, authority)
        + literal(b"content-type", b"application/grpc")
        + literal(b"te", b"trailers")
    )


def _text(value: bytes) -> bytes:
    if len(value) < 127:
        return bytes((len(value),)) + value
    size = len(value) - 127
    out = bytearray(b"\x7f")
    while size >= 128:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out) + value


def _says_ok(block: bytes) -> bool:
    """Return whether an HPACK block without a table has grpc-status: 0.

    False for a block that isn't understood.
    """
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:
                _, at = _number(block, at, 7)
                continue
            if first & 0xE0 == 0x20:
                _, at = _number(block, at, 5)
                continue
            index, at = _number(block, at, 6 if first & 0x40 else 4)
            name = b""
            if not index:
                name, at = _string(block, at)
            value, at = _string(block, at)
            if name in _STATUS:
                return value in _OK
    except IndexError:
        pass
    return False


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value == most:
        shift = 0
        while True:
            byte = block[at]
            at += 1
            value += (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
    return value, at


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    size, begin = _number(block, at, 7)
    return block[begin : begin + size], begin + size

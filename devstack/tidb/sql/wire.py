"""Serve the MySQL protocol on one connection: packets, handshake, result sets as text."""

from __future__ import annotations

import hashlib
import secrets
import socket
import ssl
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sluice.devstack.tidb.sql.errors import SQLError
from sluice.devstack.tidb.sql.results import Header
from sluice.devstack.tidb.sql.variables import VERSION
from sluice.etl.changes import server_errors

_MAX_PACKET_BYTES = 0xFFFFFF
_BUFFER_BYTES = 1 << 16
_CONNECT_WITH_DB, _SSL, _PLUGIN_AUTH, _LENENC_AUTH = 1 << 3, 1 << 11, 1 << 19, 1 << 21
_CAPABILITIES = (
    0x1
    | 0x2
    | 0x4
    | _CONNECT_WITH_DB
    | 0x200
    | 0x2000
    | 0x8000
    | _PLUGIN_AUTH
    | 1 << 20
    | _LENENC_AUTH
)
_PLUGIN = b"mysql_native_password"
_AUTOCOMMIT = 2
_NULL = b"\xfb"


@dataclass(frozen=True, slots=True)
class Login:
    """The user that logged in, and the schema to begin in."""

    user: str
    schema: str


class MySQLConnection:
    """A connection. OSError and EOFError when it is gone."""

    def __init__(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        self._socket = connection
        self._tls = tls
        self._number = 0
        self._out = bytearray()

    def read(self) -> bytes:
        """Return a packet, put together if it came in several. EOFError at the end."""
        whole = b""
        while True:
            head = self._exactly(4)
            length = int.from_bytes(head[:3], "little")
            self._number = (head[3] + 1) & 0xFF
            whole += self._exactly(length)
            if length < _MAX_PACKET_BYTES:
                return whole

    def read_command(self) -> bytes:
        """Return a packet that begins a command."""
        self._number = 0
        return self.read()

    def write(self, payload: bytes) -> None:
        """Write a packet; it leaves with `flush`, or when much is waiting."""
        at = 0
        while True:
            part = payload[at : at + _MAX_PACKET_BYTES]
            self._out += len(part).to_bytes(3, "little") + bytes((self._number,)) + part
            self._number = (self._number + 1) & 0xFF
            at += len(part)
            if len(part) < _MAX_PACKET_BYTES:
                break
        if len(self._out) > _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        self._socket.sendall(self._out)
        self._out = bytearray()

    def set_timeout(self, seconds: float | None) -> None:
        """Set how long (s) the client may leave what is sent unread; None: forever."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Close the connection, whichever socket it ended up on."""
        self._socket.close()

    def log_in(self, number: int, users: dict[str, str]) -> Login:
        """Do the handshake. SQLError ACCESS_DENIED for a wrong user or password."""
        salt = secrets.token_bytes(20).replace(b"\0", b"\1")
        offered = _CAPABILITIES | (_SSL if self._tls else 0)
        self.write(
            b"\x0a"
            + VERSION.encode()
            + b"\0"
            + struct.pack("<I", number)
            + salt[:8]
            + b"\0"
            + struct.pack("<HBHHB", offered & 0xFFFF, 46, _AUTOCOMMIT, offered >> 16, 21)
            + bytes(10)
            + salt[8:]
            + b"\0"
            + _PLUGIN
            + b"\0"
        )
        self.flush()
        answer = self.read()
        (wanted,) = struct.unpack_from("<I", answer)
        if wanted & _SSL and self._tls and len(answer) <= 32:
            self._socket = self._tls.wrap_socket(self._socket, server_side=True)
            answer = self.read()
            (wanted,) = struct.unpack_from("<I", answer)
        user, _, rest = answer[32:].partition(b"\0")
        size = rest[0]
        proof, rest = rest[1 : 1 + size], rest[1 + size :]
        schema = b""
        if wanted & _CONNECT_WITH_DB:
            schema, _, rest = rest.partition(b"\0")
        plugin = rest.partition(b"\0")[0] if wanted & _PLUGIN_AUTH else _PLUGIN
        if plugin != _PLUGIN:
            self.write(b"\xfe" + _PLUGIN + b"\0" + salt + b"\0")
            self.flush()
            proof = self.read()
        name = user.decode()
        if name not in users or proof != _proof(users[name], salt):
            using = "YES" if proof else "NO"
            raise SQLError(
                server_errors.ACCESS_DENIED,
                f"Access denied for user '{name}'@'127.0.0.1' (using password: {using})",
            )
        return Login(name, schema.decode())

    def ok(self, affected: int = 0) -> None:
        """Answer that a statement without rows is done, and changed so many rows."""
        self.write(b"\0" + _length(affected) + b"\0" + struct.pack("<HH", _AUTOCOMMIT, 0))
        self.flush()

    def error(self, error: SQLError) -> None:
        """Answer that a statement failed."""
        text = str(error).encode()
        self.write(b"\xff" + struct.pack("<H", error.number) + b"#" + error.state.encode() + text)
        self.flush()

    def result(self, columns: list[Header], rows: Iterable[Iterable[Any]]) -> None:
        """Write a result set; what `rows` raises comes out between the rows."""
        self.write(_length(len(columns)))
        for column in columns:
            self.write(_definition(column))
        self._end()
        for row in rows:
            self.write(
                b"".join(
                    _NULL if v is None else _bytes(c.show(v))
                    for c, v in zip(columns, row, strict=True)
                )
            )
        self._end()
        self.flush()

    def _end(self) -> None:
        self.write(b"\xfe" + struct.pack("<HH", 0, _AUTOCOMMIT))

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _proof(password: str, salt: bytes) -> bytes:
    if not password:
        return b""
    once = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    twice = hashlib.sha1(once, usedforsecurity=False).digest()
    mask = hashlib.sha1(salt + twice, usedforsecurity=False).digest()
    return bytes(a ^ b for a, b in zip(once, mask, strict=True))


def _length(number: int) -> bytes:
    if number < 251:
        return bytes((number,))
    if number < 1 << 16:
        return b"\xfc" + number.to_bytes(2, "little")
    return (
        b"\xfd" + number.to_bytes(3, "little")
        if number < 1 << 24
        else b"\xfe" + number.to_bytes(8, "little")
    )


def _bytes(value: bytes) -> bytes:
    return _length(len(value)) + value


def _definition(column: Header) -> bytes:
    schema, table, name = (part.encode() for part in column.origin)
    return (
        b"\x03def"
        + _bytes(schema)
        + _bytes(table)
        + _bytes(table)
        + _bytes(column.name.encode())
        + _bytes(name)
        + b"\x0c"
        + struct.pack(
            "<HIBHB", column.charset, column.length, column.type, column.flags, column.decimals
        )
        + b"\0\0"
    )

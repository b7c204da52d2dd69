"""A server that asks for more than a server may: for the password in clear, for memory."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

import pymysql.err
import pytest

from sluice.etl.changes.formats.mysql_result_stream import result_blocks
from sluice.etl.changes.formats.mysql_rows import ProtocolError
from sluice.etl.settings.sql_login import LoginConnection

_SECRET = "the-password-itself"
_GREETING = (
    b"\x0a8.0.36\0"
    + struct.pack("<I", 1)
    + b"a" * 8
    + b"\0"
    + struct.pack("<H", 0xF7FF & ~0x0800)
    + b"\x2d"
    + struct.pack("<HH", 2, 0x00BF)
    + b"\x15"
    + bytes(10)
    + b"b" * 12
    + b"\0mysql_native_password\0"
)


def _packet(number: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def _endless(sock: socket.socket, number: int) -> None:
    """A packet that never ends."""
    while True:
        sock.sendall(_packet(number, bytes((1 << 24) - 1)))
        number = (number + 1) % 256


def _logged_in_to(
    script: Callable[[socket.socket], None], use: Callable[[LoginConnection], object] = bool
) -> tuple[Exception, bytes]:
    """The error of a login at a server that greets and then does as `script` has it, or of what it
    is used for; all that the client sent.
    """
    received = bytearray()

    def serve() -> None:
        sock, _ = listening.accept()
        with sock:
            sock.settimeout(60)
            sock.sendall(_packet(0, _GREETING))
            received.extend(sock.recv(65536))
            try:
                script(sock)
                while data := sock.recv(65536):
                    received.extend(data)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises((pymysql.err.MySQLError, ProtocolError)) as caught:
            connection = LoginConnection(
                host="127.0.0.1",
                port=listening.getsockname()[1],
                user="u",
                password=_SECRET,
                read_timeout=60,
            )
            with contextlib.closing(connection):
                use(connection)
        thread.join(60)
    return caught.value, bytes(received)


@pytest.mark.parametrize("switch", [b"mysql_clear_password\0", b"dialog\0\x05Password: "])
def test_the_password_is_not_sent_in_clear_on_request(switch: bytes) -> None:
    error, received = _logged_in_to(lambda sock: sock.sendall(_packet(2, b"\xfe" + switch)))
    assert "asks for the password in clear" in str(error)
    assert _SECRET.encode() not in received


def test_a_packet_without_an_end_is_refused_before_the_login() -> None:
    error, _ = _logged_in_to(lambda sock: _endless(sock, 2))
    assert "before the login" in str(error)


_OK = b"\0\0\0\x02\0\0\0"
_TEXT = b"\x03def\0\0\0\x01a\0\x0c\x2d\0\xff\xff\xff\xff\xfb\0\0\0\0\0"
_COLUMN = _packet(1, b"\1") + _packet(2, _TEXT) + _packet(3, b"\xfe\0\0\2\0")


def _read_blocks(connection: LoginConnection) -> object:
    return list(result_blocks(connection, "SELECT 1", 60))


def _query(connection: LoginConnection) -> object:
    with connection.cursor() as cursor:
        return cursor.execute("SELECT 1")


@pytest.mark.parametrize("use", [_query, _read_blocks])
@pytest.mark.parametrize("begin", ["answer", "row"])
def test_a_packet_without_an_end_is_refused_behind_the_login(
    use: Callable[[LoginConnection], object], begin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoginConnection, "most_packet_bytes", 40 << 20)

    def script(sock: socket.socket) -> None:
        sock.sendall(_packet(2, _OK))
        while b"SELECT 1" not in sock.recv(65536):
            sock.sendall(_packet(1, _OK))
        if begin == "row":
            sock.sendall(_COLUMN)
        _endless(sock, 4 if begin == "row" else 1)

    error, _ = _logged_in_to(script, use)
    assert "a packet of more than 40 MiB" in str(error)

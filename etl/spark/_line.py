"""The messages between a persistent worker and its caller: record batches over a socket.

Each message is a kind (1 byte), a length (8 bytes, big-endian) and as many bytes. Before the first
one both prove that they know the key that went to the worker with its job: each answers the other's
challenge by HMAC-SHA256.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import threading

from sluice.etl.spark._line_tls import TlsSocket

__all__ = ["ALIVE", "BATCH", "CALL", "CHALLENGE_BYTES", "END", "FAILED", "WorkerConnection"]

CALL, BATCH, END, FAILED, ALIVE = b"C", b"B", b"E", b"F", b"A"
"""Batches to work on; one batch of what comes of them; all of it; what went wrong, as text; it is
being worked on.
"""
CHALLENGE_BYTES = 32
_HEAD = struct.Struct(">cQ")
_PROOF_BYTES = 32


class WorkerConnection:
    """One side of a connection.

    One thread receives; several may send. Raises OSError: ConnectionError where the other side
    closed the connection or isn't authentic, TimeoutError where it is silent.
    """

    def __init__(self, connection: socket.socket | TlsSocket, timeout_s: float) -> None:
        """Create the worker connection; `timeout_s`: how long the other side may be silent."""
        connection.settimeout(timeout_s)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connection
        self._sending = threading.Lock()

    def prove(self, key: bytes, own: bytes, other: bytes) -> None:
        """Challenge the other side, and answer its challenge.

        `own` and `other` name the two sides, so that an answer can't be used the other way around.
        Raises ConnectionError.
        """
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        self._socket.sendall(challenge)
        asked = self._take(CHALLENGE_BYTES)
        self._socket.sendall(hmac.digest(key, own + bytes(asked), "sha256"))
        if not hmac.compare_digest(
            bytes(self._take(_PROOF_BYTES)), hmac.digest(key, other + challenge, "sha256")
        ):
            raise ConnectionError("the other side doesn't know the key")

    def set_timeout(self, timeout_s: float) -> None:
        """Set how long, in s, the other side may be silent, or not read."""
        self._socket.settimeout(timeout_s)

    def send(self, kind: bytes, data: bytes | memoryview = b"") -> None:
        """Send one message."""
        head = _HEAD.pack(kind, len(data))
        with self._sending:
            if len(data) < 16_384:
                self._socket.sendall(head + bytes(data))
                return
            self._socket.sendall(head)
            self._socket.sendall(data)

    def receive(self) -> tuple[bytes, bytearray]:
        """Return the next message."""
        kind, size = _HEAD.unpack(self._take(_HEAD.size))
        return kind, self._take(size)

    def close(self) -> None:
        """Close the connection; a thread that waits for the other side gets an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _take(self, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = self._socket.recv_into(view[done:])
            if not count:
                raise ConnectionError("the other side hung up")
            done += count
        return data

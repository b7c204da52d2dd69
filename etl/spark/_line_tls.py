"""TLS between a persistent worker and its caller, where Spark Connect is reached by TLS.

The caller makes a certificate for each worker, which travels with the worker's job. The worker
trusts that one alone, so no authority and no name is needed. The caller knows the worker by the key
of `sluice.etl.spark._line`, as without TLS.
"""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import threading
from typing import Any

__all__ = ["CallerCertificate", "TlsSocket", "trusting"]

_VALID_DAYS = 7
"""Before and after now: a worker lives for a minute, and clocks of hosts may differ."""
_MAX_RECORD_BYTES = 1 << 18
"""What is encrypted at a time, as all of it is kept until it has been sent."""


class CallerCertificate:
    """A new certificate with its key: `pem` for the worker, `context` for the caller's socket."""

    def __init__(self) -> None:
        # Airflow brings it, and workers needn't have it
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sluice caller")])
        now = datetime.datetime.now(datetime.UTC)
        days = datetime.timedelta(_VALID_DAYS)
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - days)
            .not_valid_after(now + days)
            .sign(key, hashes.SHA256())
        )
        self.pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.num_tickets = 0  # a worker never comes again
        # OpenSSL takes files only: this one is in memory, and has no name
        with os.fdopen(os.memfd_create("sluice"), "wb") as file:
            file.write(secret + self.pem.encode())
            file.flush()
            self.context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def trusting(pem: str) -> ssl.SSLContext:
    """Return the context of a worker that trusts one certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=pem)
    return context


class TlsSocket:
    """A connected socket that speaks TLS; one thread may receive while others send.

    `ssl.SSLSocket` allows no two threads at a time. Raises OSError, as sockets do.
    """

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext,
        timeout_s: float,
        *,
        server_side: bool,
    ) -> None:
        """Shake hands within `timeout_s` a message; the connection is closed if that fails."""
        self._socket = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._state = threading.Lock()
        self._sending = threading.Lock()
        self.family = connection.family
        try:
            connection.settimeout(timeout_s)
            while not self._shake():
                self._receive()
        except BaseException:
            connection.close()
            raise

    def settimeout(self, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self._socket.setsockopt(level, name, value)

    def sendall(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        with self._sending:
            for first in range(0, len(view), _MAX_RECORD_BYTES):
                with self._state:
                    self._tls.write(view[first : first + _MAX_RECORD_BYTES])
                    encrypted = self._outgoing.read()
                self._socket.sendall(encrypted)

    def recv_into(self, view: memoryview) -> int:
        while True:
            with self._state:
                try:
                    count: Any = self._tls.read(len(view), view)
                    return int(count)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLZeroReturnError:
                    return 0
            if not self._receive():
                return 0

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()

    def _shake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            if encrypted := self._outgoing.read():
                self._socket.sendall(encrypted)
        return True

    def _receive(self) -> bool:
        """Take what has come; return whether the other side may send more."""
        data = self._socket.recv(_MAX_RECORD_BYTES)
        with self._state:
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()
        return bool(data)

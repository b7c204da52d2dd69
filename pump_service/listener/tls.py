"""Set up TLS of the port from `[security]`; certificates are reloaded when their files change."""

from __future__ import annotations

import ssl
from asyncio import sslproto
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from sluice.pump_service.config import Security
from sluice.tidb.rpc import TLS

_READ_BYTES = 64 << 10
"""Read buffer of a connection.

Asyncio allocates 256 KiB before the first byte; a TLS record has at most 16 KiB.
"""


Contexts: TypeAlias = Callable[[], ssl.SSLContext]
"""Return the context for the next connection."""


def server_context(security: Security) -> Contexts | None:
    """Return a source of TLS contexts; None if TLS is off.

    They ask clients for certificates if a CA is set. Raises OSError that names the unreadable file.
    Every context has its own sessions, so none outlives the CA that checked its client.
    """
    if not security.on:
        return None
    sslproto.SSLProtocol.max_size = _READ_BYTES
    return _Reloader(security).current


def client_tls(security: Security) -> TLS | None:
    """Return TLS for the pump's own connections (PD, etcd, TiKV, drainers); None without a CA.

    Raises OSError that names the unreadable file.
    """
    if not security.ssl_ca:
        return None
    return TLS.from_settings(security.ssl_ca, security.ssl_cert, security.ssl_key)


def roles_of(security: Security, certificate: dict[str, Any] | None) -> frozenset[str]:
    """Return the roles of a client with this certificate (as `getpeercert` returns it)."""
    subject = (certificate or {}).get("subject", ())
    return security.roles_of(value for rdn in subject for key, value in rdn if key == "commonName")


class _Reloader:
    def __init__(self, security: Security) -> None:
        self._security = security
        self._seen = self._mtimes()
        self._context = self.build()

    def current(self) -> ssl.SSLContext:
        """Return the context of the current files; the former one while they can't be read."""
        try:
            now = self._mtimes()
            if now != self._seen:
                self._context = self.build()
                self._seen = now
        except OSError:  # also OpenSSL's
            pass  # files are being replaced: the next connection reads them
        return self._context

    def _mtimes(self) -> list[int]:
        files = (self._security.ssl_ca, self._security.ssl_cert, self._security.ssl_key)
        return [Path(path).stat().st_mtime_ns for path in files if path]

    def build(self) -> ssl.SSLContext:
        """Return a context from the files."""
        security = self._security
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # Python 3.13 rejects certificates without RFC 5280's identifiers; TiDB, MySQL and
        # Python 3.12 accept them
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        try:
            context.load_cert_chain(security.ssl_cert, security.ssl_key)
        except OSError as error:
            raise OSError(
                f"ssl-cert {security.ssl_cert} and ssl-key {security.ssl_key} can't be used:"
                f" {error.strerror or error}"
            ) from error
        if security.ssl_ca:
            try:
                context.load_verify_locations(security.ssl_ca)
            except OSError as error:
                raise OSError(
                    f"ssl-ca {security.ssl_ca} can't be used: {error.strerror or error}"
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # a session that is resumed isn't checked again
        context.options |= ssl.OP_NO_TICKET
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context

"""TLS of the port: `[security]` of the settings, certificates read again when their files change."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from pump_service.config import Security


def server_context(security: Security) -> ssl.SSLContext | None:
    """A context that asks clients for certificates if a CA is set; None if TLS is off. OSError, ssl.SSLError."""
    if not security.on:
        return None
    reloader = _Reloader(security)
    outer = reloader.build()

    def renew(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = reloader.current()

    outer.sni_callback = renew
    return outer


def allowed(security: Security, certificate: dict[str, Any] | None) -> bool:
    """Whether a client certificate (as `getpeercert` gives it) has one of the allowed common names."""
    if not security.cert_allowed_cn:
        return True
    subject = (certificate or {}).get("subject", ())
    return any(key == "commonName" and value in security.cert_allowed_cn for rdn in subject for key, value in rdn)


class _Reloader:
    def __init__(self, security: Security) -> None:
        self._security = security
        self._seen = self._mtimes()
        self._context = self.build()

    def current(self) -> ssl.SSLContext:
        """The context of the files as they are now; the former one while they can't be read."""
        try:
            now = self._mtimes()
            if now != self._seen:
                self._context = self.build()
                self._seen = now
        except (OSError, ssl.SSLError):
            pass  # a rotation in the middle: the next connection sees it whole
        return self._context

    def _mtimes(self) -> list[int]:
        files = (self._security.ssl_ca, self._security.ssl_cert, self._security.ssl_key)
        return [Path(path).stat().st_mtime_ns for path in files if path]

    def build(self) -> ssl.SSLContext:
        """A context from the files."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._security.ssl_cert, self._security.ssl_key)
        if self._security.ssl_ca:
            context.load_verify_locations(self._security.ssl_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context

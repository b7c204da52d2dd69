"""Serve /healthz and /readyz of a service, for the probes of Kubernetes and others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["HealthEndpoint"]

_REQUEST_TIMEOUT_S = 10.0
_PROBES = {"/healthz": "alive", "/readyz": "ready"}
"""The field of the state that each answers with: 200 if it is true, else 503."""


class HealthEndpoint:
    """Listen once it is made; `close` ends it. Raises OSError if the address is taken."""

    def __init__(self, state: Callable[[], dict[str, Any]], host: str, port: int) -> None:
        """Serve what `state` returns; `port`: 0 for any that is free."""
        self._server = ThreadingHTTPServer((host, port), _handler(state))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health-endpoint", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port that it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(state: Callable[[], dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            found, probe = state(), _PROBES.get(self.path)
            body = json.dumps(found).encode()
            self.send_response(404 if probe is None else 200 if found[probe] else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing: probes come every few seconds."""

    return Handler

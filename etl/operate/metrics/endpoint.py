"""Serve the metrics over HTTP: `/metrics`, and `/` for people who look what this is."""

from __future__ import annotations

import logging
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sluice.etl.operate.metrics.collector import PipelineCollector

__all__ = ["MetricsEndpoint"]

log = logging.getLogger("sluice")

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_MAX_CONNECTIONS = 16
"""at a time, a thread each; more are closed at once"""
_REQUEST_TIMEOUT_S = 30.0
"""A connection without a request is closed after this time."""


class MetricsEndpoint:
    """Listen once it is made; `close` ends it. Raises OSError if the address is taken."""

    def __init__(self, gatherer: PipelineCollector, host: str, port: int) -> None:
        """Create the metrics endpoint; `port`: 0 for any that is free."""
        self._server = _Server((host, port), gatherer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics-endpoint", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port that it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def wait(self) -> None:
        """Serve until it is closed, or this thread is interrupted."""
        while self._thread.is_alive():
            self._thread.join(1.0)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], gatherer: PipelineCollector) -> None:
        self.gatherer = gatherer
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, if there are not too many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system gives no thread
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Process a request as `ThreadingHTTPServer` does, and free its slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(HTTPStatus.OK, self.server.gatherer.text())
        elif path == "/":
            self._answer(HTTPStatus.OK, b"Sluice's metrics are at /metrics\n")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"not here: /metrics\n")

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", _TEXT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s %s", self.address_string(), format % args)

"""Serve a few small answers over HTTP, in a bounded number of threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

__all__ = ["HttpAnswer", "HttpEndpoint"]

log = logging.getLogger("sluice")

_MAX_CONNECTIONS = 16
"""at a time, a thread each; more are closed at once"""
_REQUEST_TIMEOUT_S = 30.0
"""A connection without a request is closed after this time."""


class HttpAnswer(NamedTuple):
    """What a path is answered with."""

    status: HTTPStatus
    content_type: str
    body: bytes


class HttpEndpoint:
    """Listen once it is made; `close` ends it. Raises OSError if the address is taken."""

    def __init__(
        self, name: str, answer: Callable[[str], HttpAnswer], host: str, port: int
    ) -> None:
        """Answer GET of each path, without its query, by `answer`; `port`: 0 for any that is free.

        `name` is the thread's. Many threads call `answer`.
        """
        self._server = _Server((host, port), answer)
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)
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

    def __init__(self, address: tuple[str, int], answer: Callable[[str], HttpAnswer]) -> None:
        self.answer = answer
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
        status, content_type, body = self.server.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s %s", self.address_string(), format % args)

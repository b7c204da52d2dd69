"""The stand-in cluster's control port: HTTP/1 with JSON, for the launcher and the command line.

    GET  /status                    cluster, recording, state, counts, newest timestamps
    POST /replay                    {"until": label or ts or null, "speed": number or "max",
                                    "strategy": "range" | …}
    POST /stop                      stops a replay or a workload
    GET  /commits?after=ts&limit=n  [[commit_ts, wall ms, transaction number or null], …]
                                    ascending, at most n
    POST /workload                  see sluice.devstack.tidb.workload.WorkloadOptions
    GET  /workload                  its state
    POST /tidb                      {"address": host:port, "do": …}, one of start, begin, prewrite,
                                    commit, reconnect, isolate, kill
    POST /gc                        {"safe_point": TSO}: TiDB's GC drops what is older, as far as
                                    services let it; {"safe_point": the one that rules}
    POST /column                    {"schema", "table", "name"}: ALTER TABLE adds a BIGINT that may
                                    be NULL
    POST /accident                  {"schema", "table"}: one transaction deletes every row of the
                                    table; {"commit_ts", "rows"}
    POST /change-data               {"do": …}: an accident for subscribers of change data, as
                                    ChangeData has them: split {"key"}, merge, congest,
                                    transfer {"region", "store"}, silence {"region"},
                                    break {"store"}, busy {"count"}, repeat {"commands"},
                                    shake {"seed"}, hold-scans {"on"}
    GET  /change-data               regions with their stores, bounds, and how many subscribe to
                                    them

Errors are {"error": text} with status 400 (a wrong request) or 409 (not now).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sluice.errors import Signal

_REQUEST_TIMEOUT_S = 60.0
_MAX_BODY_BYTES = 1 << 20


class RequestRejected(Signal):
    """A request that can't be served: `status` 400 or 409 and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


Handler = Callable[[dict[str, Any]], Coroutine[Any, Any, Any]]


class ControlServer:
    """Serve `routes` ("METHOD /path": async function of the parameters) on their event loop."""

    def __init__(
        self, host: str, port: int, loop: asyncio.AbstractEventLoop, routes: dict[str, Handler]
    ) -> None:
        class Request(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = _REQUEST_TIMEOUT_S

            def do_GET(self) -> None:
                self._serve()

            def do_POST(self) -> None:
                self._serve()

            def log_message(self, format: str, *args: Any) -> None:
                pass  # polled every second

            def _serve(self) -> None:
                try:
                    status, answer = 200, self._answer()
                except RequestRejected as refused:
                    status, answer = refused.status, {"error": str(refused)}
                except Exception as error:
                    status, answer = 500, {"error": f"{type(error).__name__}: {error}"}
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _answer(self) -> Any:
                url = urlsplit(self.path)
                parameters: dict[str, Any] = {
                    name: values[-1] for name, values in parse_qs(url.query).items()
                }
                length = int(self.headers.get("Content-Length") or 0)
                if length > _MAX_BODY_BYTES:
                    self.close_connection = True
                    raise RequestRejected(
                        400, f"a body of {length} bytes; at most {_MAX_BODY_BYTES} are read"
                    )
                body = self.rfile.read(length)
                if body:
                    try:
                        parameters.update(json.loads(body))
                    except (ValueError, TypeError) as error:
                        raise RequestRejected(
                            400, f"the body is no JSON object: {error}"
                        ) from error
                handler = routes.get(f"{self.command} {url.path}")
                if handler is None:
                    raise RequestRejected(
                        400, f"no {self.command} {url.path}; there are: {', '.join(routes)}"
                    )
                return asyncio.run_coroutine_threadsafe(handler(parameters), loop).result(
                    _REQUEST_TIMEOUT_S
                )

        self._server = ThreadingHTTPServer((host, port), Request)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="control", daemon=True
        )

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Start to serve, in threads of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to serve; may block for half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

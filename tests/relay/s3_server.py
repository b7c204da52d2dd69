"""An S3 server as a child process, and a proxy in front of it that holds uploads back, loses answers or
drops headers.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class S3Server:
    """ministack's S3 on `port`, everything in memory, with one bucket."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        env = os.environ | {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "SERVICES": "s3",
            "LOG_LEVEL": "WARNING",
            "STATE_DIR": str(folder),
            "S3_DATA_DIR": str(folder),
            "TMPDIR": str(folder),
            "DOCKER_HOST": f"unix://{folder}/none",
        }
        self._log = (folder / "s3.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ministack"], env=env, stdout=self._log, stderr=self._log
        )
        until = time.monotonic() + 60
        while True:
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{self.port}/bucket", method="PUT")
                urllib.request.urlopen(request, timeout=5).close()
                return
            except OSError:
                assert self._process.poll() is None and time.monotonic() < until, (folder / "s3.log").read_text()
                time.sleep(0.1)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


class Proxy:
    """Passes requests on. `hold`: uploads whose path contains it wait until `release`, though their client has left, as
    they do in a network; the others pass. `lose`: so many uploads are passed on, but their answers are not. `without`:
    a header that isn't passed on.
    """

    def __init__(self, port: int) -> None:
        self.hold = ""
        self.lose = 0
        self.without = ""
        self.late: list[int] = []  # status codes of uploads that were held back
        self.secrets_seen = False
        self._open = threading.Event()
        self._waiting = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                proxy.secrets_seen |= "Credential=" in self.headers.get("Authorization", "")
                held = self.command == "PUT" and bool(proxy.hold) and proxy.hold in self.path
                if held:
                    with proxy._lock:
                        proxy._waiting += 1
                    proxy._open.wait(60)
                onward = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                headers = {key: value for key, value in self.headers.items() if key.lower() != proxy.without}
                onward.request(self.command, self.path, body, headers)
                answer = onward.getresponse()
                data = answer.read()
                if held:
                    with proxy._lock:
                        proxy.late.append(answer.status)
                        proxy._waiting -= 1
                if self.command == "PUT" and proxy.lose:
                    proxy.lose -= 1
                    self.close_connection = True
                    return
                with contextlib.suppress(OSError):  # the client may have left
                    self.send_response(answer.status)
                    for key, value in answer.getheaders():
                        if key.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                            self.send_header(key, value)
                    length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
                    self.send_header("Content-Length", length or "0")
                    self.end_headers()
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def release(self) -> list[int]:
        """Let the held uploads through; the answers that they got."""
        self.hold = ""
        self._open.set()
        until = time.monotonic() + 60
        while self._waiting:
            assert time.monotonic() < until
            time.sleep(0.01)
        return self.late

    @property
    def url(self) -> str:
        """A relay URL."""
        return f"s3://bucket/relay?region=us-east-1&endpoint_override=127.0.0.1:{self.port}&scheme=http"

    def close(self) -> None:
        self._open.set()
        self._server.shutdown()
        self._server.server_close()

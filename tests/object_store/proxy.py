"""An HTTP proxy in front of an object store that injects faults, and counts requests as stores
charge for them.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.object_store.lagging import Listed

KINDS = (
    "slow",
    "busy",
    "failed",
    "denied",
    "failed after",
    "reset",
    "lost",
    "held",
    "held after",
    "lag",
    "cut",
    "flipped",
    "without",
    "unknown condition",
)
_REFUSALS = {
    "busy": (503, "SlowDown"),
    "failed": (500, "InternalError"),
    "denied": (403, "ExpiredToken"),
}
_NOT_PASSED_ON = ("transfer-encoding", "content-length", "connection", "date", "server")
_WAIT_S = 120.0
_SIGNED_BY = re.compile(r"(?:Credential=|SharedKey )([^/:,]+)")


@dataclass
class Fault:
    """Something that happens to requests.

    `kind`:

    - ``slow``: it waits `seconds` before it reaches the server
    - ``busy``: 503 SlowDown, ``failed``: 500 InternalError, ``denied``: 403 ExpiredToken; it never
      reaches the server
    - ``failed after``: it has reached the server, and the answer is a 500
    - ``reset``: the connection breaks before it reaches the server
    - ``lost``: it has reached the server, and the connection breaks before the answer
    - ``held``: it reaches the server when the fault is over (`release`, `heal`), though its client
      may have left
    - ``held after``: it has reached the server, and the answer goes back when the fault is over
    - ``lag``: a list doesn't know of what was created in the last `seconds`, and knows what was
      removed in them
    - ``cut``: half of the body, then the connection breaks; ``flipped``: a bit of the body is
      another one
    - ``without``: the header `header` isn't passed on; ``unknown condition``: 501 for requests that
      have it
    """

    kind: str
    methods: str = ""
    """Names of `counted`, with spaces between them; empty: all."""
    path: str = ""
    """What the request's path contains."""
    times: int | None = None
    """To how many requests; None: to all."""
    chance: float = 1.0
    """To which part of them, by a generator that begins at `seed`."""
    seed: int = 0
    seconds: float = 0.0
    header: str = ""
    happened: int = 0
    late: list[int] = field(default_factory=list)
    """Status codes that held requests got in the end."""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, f"{self.kind} is none of {KINDS}"
        self._random = random.Random(self.seed)
        self._over = threading.Event()
        self.is_held = threading.Event()
        """A request is held now; of ``held after``: and the server has done it."""
        self._waiting = 0
        self._lock = threading.Lock()

    def is_for(self, what: str, path: str) -> bool:
        """Whether it happens to this request."""
        if (self.methods and what not in self.methods.split()) or self.path not in path:
            return False
        with self._lock:
            if (
                self._over.is_set()
                or self.times == self.happened
                or self._random.random() >= self.chance
            ):
                return False
            self.happened += 1
            self._waiting += self.kind.startswith("held")
            if self.kind == "held":
                self.is_held.set()
            return True

    def wait(self) -> None:
        """Hold a request until it is over."""
        self._over.wait(_WAIT_S)

    def passed(self, status: int) -> None:
        """What was held has got its answer."""
        with self._lock:
            self._waiting -= 1
            self.late.append(status)

    def end(self) -> None:
        """It happens no more; what is held goes on."""
        self._over.set()

    def release(self) -> list[int]:
        """As `end`; the answers that the held requests got, when they have them."""
        self.end()
        until = time.monotonic() + _WAIT_S
        while self._waiting:
            assert time.monotonic() < until
            time.sleep(0.01)
        return self.late


@dataclass(slots=True)
class _Answer:
    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes
    length: str | None

    @property
    def is_good(self) -> bool:
        return self.status < 300


class FaultyProxy:
    """Passes requests on to the server at `port`, each client's connection by one of its own.

    With `tls` clients speak TLS to it.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.keys_seen: list[str] = []
        """The access keys that S3 requests were signed with, or Azure's accounts, in order, each
        once.
        """
        self._faults: list[Fault] = []
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.listed = Listed()
        """What lists that lag go by; proxies of one server share it."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # an answer's head and body go together, else the second waits for an acknowledgement
            wbufsize = 1 << 16

            def setup(self) -> None:
                super().setup()
                self.onward = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_S)

            def finish(self) -> None:
                self.onward.close()
                with contextlib.suppress(OSError):
                    super().finish()

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                what = _class_of(self.command, self.path)
                with proxy._lock:
                    proxy._counts[what] += 1
                    faults = [fault for fault in proxy._faults if fault.is_for(what, self.path)]
                signed = _SIGNED_BY.search(self.headers.get("Authorization", ""))
                if signed and signed[1] not in proxy.keys_seen:
                    proxy.keys_seen.append(signed[1])
                with contextlib.suppress(OSError):  # the client may have left
                    proxy._handle(self, what, body, faults)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                """A client that leaves is nothing to speak of."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def inject(self, *faults: Fault) -> None:
        with self._lock:
            self._faults += faults

    def heal(self) -> None:
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.end()

    def counted(self) -> Counter[str]:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts

    def close(self) -> None:
        self.heal()
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, handler: Any, what: str, body: bytes, faults: list[Fault]) -> None:
        kinds = {fault.kind: fault for fault in faults}
        if "slow" in kinds:
            time.sleep(kinds["slow"].seconds)
        if "reset" in kinds:
            handler.close_connection = True
            return
        if "unknown condition" in kinds and kinds["unknown condition"].header in handler.headers:
            _send(handler, _error(501, "NotImplemented"))
            return
        for kind, (status, code) in _REFUSALS.items():
            if kind in kinds:
                _send(handler, _error(status, code))
                return
        held, after = kinds.get("held"), kinds.get("held after")
        if held is not None:
            held.wait()
        dropped = {fault.header.lower() for fault in faults if fault.kind == "without"}
        answer = self._ask(handler, body, dropped)
        if answer.is_good:
            self.listed.note(what, handler.path)
        if after is not None:
            after.is_held.set()
            after.wait()
        for one in (held, after):
            if one is not None:
                one.passed(answer.status)
        if "failed after" in kinds:
            answer = _error(500, "InternalError")
        if "lost" in kinds:
            handler.close_connection = True
            return
        self._answer(handler, answer, kinds)

    def _ask(self, handler: Any, body: bytes, dropped: set[str]) -> _Answer:
        headers = {
            key: value for key, value in handler.headers.items() if key.lower() not in dropped
        }
        try:
            handler.onward.request(handler.command, handler.path, body, headers)
            answer = handler.onward.getresponse()
        except (
            OSError,
            http.client.HTTPException,
        ):  # the server has closed a connection that was idle
            handler.onward.close()
            handler.onward.request(handler.command, handler.path, body, headers)
            answer = handler.onward.getresponse()
        data = answer.read()
        length = answer.getheader("Content-Length") if handler.command == "HEAD" else str(len(data))
        return _Answer(answer.status, answer.getheaders(), data, length)

    def _answer(self, handler: Any, answer: _Answer, kinds: dict[str, Fault]) -> None:
        if answer.is_good and "lag" in kinds:
            answer.body = self.listed.older(handler.path, answer.body, kinds["lag"].seconds)
            answer.length = str(len(answer.body))
        if answer.is_good and answer.body and "flipped" in kinds:
            at = len(answer.body) // 2
            answer.body = answer.body[:at] + bytes([answer.body[at] ^ 1]) + answer.body[at + 1 :]
        if answer.is_good and answer.body and "cut" in kinds:
            answer.body = answer.body[: len(answer.body) // 2]
            handler.close_connection = True
        _send(handler, answer)


def _send(handler: Any, answer: _Answer) -> None:
    handler.send_response(answer.status)
    for key, value in answer.headers:
        if key.lower() not in _NOT_PASSED_ON:
            handler.send_header(key, value)
    handler.send_header("Content-Length", answer.length or "0")
    handler.end_headers()
    handler.wfile.write(answer.body)
    handler.wfile.flush()


def _error(status: int, code: str) -> _Answer:
    body = (
        '<?xml version="1.0"'
        f' encoding="UTF-8"?><Error><Code>{code}</Code><Message>injected</Message></Error>'
    )
    return _Answer(status, [("Content-Type", "application/xml")], body.encode(), str(len(body)))


def _class_of(method: str, path: str) -> str:
    query = path.partition("?")[2]
    if method == "GET" and any(word in query for word in ("list-type=", "prefix=", "comp=list")):
        return "LIST"
    if method == "POST":
        return "DELETE" if query.startswith("delete") else "PUT"
    return method

"""A schema registry for tests, written from Confluent's published API; no other is started by it.

It knows one rule of compatibility: a field that is new in a record must have a default.
"""

from __future__ import annotations

import base64
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class Registry:
    """What the registry has been asked for, and what it is to answer."""

    def __init__(self) -> None:
        self.subjects: dict[str, list[int]] = defaultdict(list)
        self.texts: list[str] = []
        self.failures: list[int] = []
        """Statuses of the next answers."""
        self.takes_all = False
        """Whether the level of compatibility is NONE."""
        self.authorization = ""
        """What requests must have."""
        self.limit = 10**6
        """How many requests it takes before it refuses all as incompatible."""
        self.asked = 0
        self.url = ""

    def text(self, schema_id: int) -> str:
        """Return the schema with the id."""
        return self.texts[schema_id - 1]

    def answer(self, subject: str, text: str, authorization: str) -> tuple[int, Any]:
        """Return the status and the document for a schema to be registered."""
        self.asked += 1
        if self.failures:
            return self.failures.pop(0), {"error_code": 50001, "message": "down"}
        if authorization != self.authorization:
            return 401, {"error_code": 401, "message": "who are you"}
        if text in self.texts and (found := self.texts.index(text) + 1) in self.subjects[subject]:
            return 200, {"id": found}
        versions = self.subjects[subject]
        last = json.loads(self.text(versions[-1])) if versions else None
        fits = self.takes_all or not last or _reads(json.loads(text), last)
        if self.asked > self.limit or not fits:
            return 409, {"error_code": 409, "message": "incompatible"}
        self.texts.append(text)
        self.subjects[subject].append(len(self.texts))
        return 200, {"id": len(self.texts)}


def _reads(new: Any, old: Any) -> bool:
    before = {field["name"] for field in old["fields"]}
    fields = new["fields"]
    return new["name"] == old["name"] and all(
        "default" in f for f in fields if f["name"] not in before
    )


@contextmanager
def running_registry() -> Iterator[Registry]:
    """Run a registry on loopback."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            subject = unquote(self.path.split("/")[2])
            text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
            status, document = registry.answer(
                subject, text, self.headers.get("Authorization") or ""
            )
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def basic(user: str, password: str) -> str:
    """Return the header Authorization of a user."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

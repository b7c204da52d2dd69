"""The pump's HTTP pages: what binlogctl and TiDB's SHOW PUMP STATUS / CHANGE PUMP ask for, metrics, and debugging."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from pump_service import debug
from pump_service.http1 import Request, Response
from pump_service.metrics import exposition

_OK, _OTHER = 200, 3  # the original's codes; 1 and 2 are those of its command-line tools
_TEXT = "text/plain; charset=utf-8"


class PumpControl(Protocol):
    """What the pages need of the pump. The calls may block for seconds; all but `state` may raise."""

    @property
    def node_id(self) -> str:
        """The id in the registry."""

    @property
    def state(self) -> str:
        """One of online, pausing, paused, closing, offline."""

    def statuses(self) -> dict[str, dict[str, Any]]:
        """The registry's pumps by node id, this one up to date."""

    def drainers(self) -> list[dict[str, Any]]:
        """The registry's drainers."""

    def fresh_ts(self) -> int:
        """A TSO from PD."""

    def leave(self, action: str) -> None:
        """Begin to `pause` or `close`."""

    def collect_garbage(self) -> bool:
        """Start a round; False if one is under way."""

    def describe_binlog(self, ts: int) -> str:
        """The binlog stored at a timestamp and what TiKV has of its primary key, as text."""


@dataclass(frozen=True, slots=True)
class Api:
    """`handle` is a `http1.Handler`."""

    pump: PumpControl
    registry: CollectorRegistry

    async def handle(self, request: Request) -> Response:
        """Route a request. Unknown pages are 404, wrong methods 405."""
        url = urlsplit(request.target)
        path = url.path
        parts = [unquote(part) for part in path.strip("/").split("/")]
        pages: dict[str, tuple[str, Callable[[], Response]]] = {
            "status": ("GET", self._status),
            "drainers": ("GET", self._drainers),
            "metrics": ("GET", self._metrics),
            "debug": ("GET", lambda: _text(debug.INDEX)),
            "debug/stack": ("GET", lambda: _text(debug.stacks())),
            "debug/memory": ("GET", lambda: _text(debug.memory())),
            "debug/profile": ("GET", lambda: _profile(url.query)),
            "debug/gc/trigger": ("POST", self._collect),
        }
        method, page = pages.get("/".join(parts), ("", None))
        if page is None and len(parts) == 3 and parts[0] == "state":
            method, page = "PUT", lambda: self._change(parts[1], parts[2])
        elif page is None and len(parts) == 3 and parts[:2] == ["debug", "binlog"]:
            method, page = "GET", lambda: self._binlog(parts[2])
        if page is None:
            return Response(404, _TEXT, b"404 page not found\n")
        if request.method != method and not (method == "GET" and request.method == "HEAD"):
            return Response(405, _TEXT, f"{path} takes {method}\n".encode())
        return await asyncio.get_running_loop().run_in_executor(None, page)

    def _status(self) -> Response:
        errors = []
        statuses: dict[str, dict[str, Any]] = {}
        commit_ts = 0
        try:
            statuses = self.pump.statuses()
        except Exception as error:  # etcd is away: the page says so
            errors.append(str(error))
        try:
            commit_ts = self.pump.fresh_ts()
        except Exception as error:  # PD is away
            errors.append(str(error))
        return _json({"status": statuses, "CommitTS": commit_ts, "Checkpoint": {}, "ErrMsg": "; ".join(errors)})

    def _drainers(self) -> Response:
        return _json(self.pump.drainers())

    def _metrics(self) -> Response:
        return Response(200, CONTENT_TYPE_PLAIN_0_0_4, exposition(self.registry))

    def _change(self, node_id: str, action: str) -> Response:
        state = self.pump.state
        if node_id != self.pump.node_id:
            return _verdict(_OTHER, f"invalide nodeID {node_id}, this pump's nodeID is {self.pump.node_id}")
        if state != "online":
            return _verdict(_OTHER, f"this pump's state is {state}, apply {action} failed!")
        if action not in ("pause", "close"):
            return _verdict(_OTHER, f"invalide action {action}")
        self.pump.leave(action)
        return _verdict(_OK, f"apply action {action} success!")

    def _collect(self) -> Response:
        started = self.pump.collect_garbage()
        return _text("trigger gc success\n" if started else "gc is working\n")

    def _binlog(self, ts: str) -> Response:
        if not ts.isdigit():
            return _text(f"{ts!r} is no timestamp\n")
        try:
            return _text(self.pump.describe_binlog(int(ts)))
        except Exception as error:  # the original answers 200 with the error's text, too
            return _text(f"{error.args[0] if error.args else error}\n")


def _json(value: Any) -> Response:
    return Response(200, "application/json", json.dumps(value).encode())


def _verdict(code: int, message: str) -> Response:
    text = json.dumps({"message": message, "code": code, "data": None}, indent=2)
    return Response(200, "application/json; charset=utf-8", text.encode())


def _text(text: str) -> Response:
    return Response(200, _TEXT, text.encode())


def _profile(query: str) -> Response:
    given = parse_qs(query).get("seconds", ["5"])[-1]
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        return Response(400, _TEXT, f"seconds: {given!r} is no number above 0\n".encode())
    return _text(debug.profile(seconds))

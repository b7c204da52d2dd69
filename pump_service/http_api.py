"""The pump's HTTP pages: what binlogctl and TiDB's SHOW PUMP STATUS / CHANGE PUMP ask for, metrics, and debugging."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from pump_service.http1 import Request, Response
from pump_service.metrics import exposition

_log = logging.getLogger(__name__)

_OK, _WRONG_PARAM, _NOT_FOUND, _OTHER = 200, 1, 2, 3
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
        """The binlog stored at a timestamp, as text."""


@dataclass(frozen=True, slots=True)
class Api:
    """`handle` is a `http1.Handler`."""

    pump: PumpControl
    registry: CollectorRegistry

    async def handle(self, request: Request) -> Response:
        """Route a request. Unknown pages are 404, wrong methods 405."""
        path = urlsplit(request.target).path
        parts = [unquote(part) for part in path.strip("/").split("/")]
        pages: dict[str, tuple[str, Callable[[], Response]]] = {
            "status": ("GET", self._status),
            "drainers": ("GET", self._drainers),
            "metrics": ("GET", self._metrics),
            "debug/stack": ("GET", _stacks),
            "debug/memory": ("GET", _memory),
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
        return Response(200, _TEXT, b"trigger gc success\n" if started else b"gc is working\n")

    def _binlog(self, ts: str) -> Response:
        if not ts.isdigit():
            return Response(200, _TEXT, f"{ts!r} is no timestamp\n".encode())
        try:
            return Response(200, _TEXT, self.pump.describe_binlog(int(ts)).encode())
        except Exception as error:  # the original answers 200 with the error's text, too
            return Response(200, _TEXT, f"{error}\n".encode())


def _json(value: Any) -> Response:
    return Response(200, "application/json", json.dumps(value).encode())


def _verdict(code: int, message: str) -> Response:
    text = json.dumps({"message": message, "code": code, "data": None}, indent=2)
    return Response(200, "application/json; charset=utf-8", text.encode())


def _stacks() -> Response:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    out = []
    for ident, stack in sys._current_frames().items():
        out.append(f"thread {names.get(ident, '?')} ({ident})\n{''.join(traceback.format_stack(stack))}\n")
    return Response(200, _TEXT, "".join(out).encode())


def _memory() -> Response:
    info = psutil.Process().memory_info()
    counts: dict[str, int] = {}
    for item in gc.get_objects():
        name = type(item).__qualname__
        counts[name] = counts.get(name, 0) + 1
    top = sorted(counts.items(), key=lambda pair: -pair[1])[:30]
    lines = [f"rss {info.rss}", f"vms {info.vms}", f"threads {threading.active_count()}", "objects tracked by type:"]
    lines += [f"  {count:9d} {name}" for name, count in top]
    return Response(200, _TEXT, ("\n".join(lines) + "\n").encode())

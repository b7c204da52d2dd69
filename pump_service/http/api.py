"""Serve the pump's HTTP pages: status and state changes, metrics, and debugging.

binlogctl calls the first. TiDB's SHOW PUMP STATUS and CHANGE PUMP call nothing: they read and
write the registry, see `sluice.tidb.etcd.pump_registry`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
import socket
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from sluice.pump_service.config import OPERATE
from sluice.pump_service.http import debug
from sluice.pump_service.http.http1 import HttpRequest, HttpResponse
from sluice.pump_service.metrics import exposition

_OK, _OTHER = 200, 3  # the original's codes; 1 and 2 are those of its command-line tools
_MAX_STATE_THREADS = 4
_SHARED = ("status", "drainers", "metrics")
_TEXT = "text/plain; charset=utf-8"


class PumpControl(Protocol):
    """The parts of the pump that the pages call.

    The calls may block for seconds; all but `state` may raise.
    """

    @property
    def node_id(self) -> str:
        """Return the id in the registry."""

    @property
    def state(self) -> str:
        """Return online, pausing, paused, closing or offline."""

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return the registry's pumps by node id, this one up to date."""

    def about(self) -> dict[str, Any]:
        """Return the pump's version, and the format of its data."""

    def drainers(self) -> list[dict[str, Any]]:
        """Return the registry's drainers."""

    def capture_status(self) -> dict[str, Any] | None:
        """Return the figures of the capture from TiKV, None without one."""

    def fresh_ts(self) -> int:
        """Return a TSO from PD."""

    def leave(self, action: str) -> None:
        """Begin to `pause` or `close`."""

    def collect_garbage(self) -> bool:
        """Start a round; False if one is under way."""

    def decide(self, start_ts: int, commit_ts: int) -> None:
        """End an unfinished transaction; 0: rolled back.

        KeyError, ValueError or the store's errors.
        """

    def describe_binlog(self, ts: int) -> str:
        """Return the binlog stored at a timestamp and what TiKV has of its primary key, as text."""


class HttpApi:
    """Answer the pump's HTTP requests; `handle` is a `http1.Handler`.

    State and metrics have threads of their own, so they are there whatever else is asked for; who
    asks for the same meanwhile gets the same answer. Of the pages that take long, one is made at a
    time; of profiles there is one.
    """

    def __init__(
        self, pump: PumpControl, registry: CollectorRegistry, hosts: Collection[str] = ()
    ) -> None:
        """Create the HTTP API.

        `hosts`: names by which the pump is reached, besides its addresses.
        """
        self.pump = pump
        self._hosts = {host.lower() for host in (*hosts, "localhost", socket.gethostname())}
        self.registry = registry
        self._state = ThreadPoolExecutor(_MAX_STATE_THREADS, thread_name_prefix="pump-state")
        self._debug = ThreadPoolExecutor(1, thread_name_prefix="pump-debug")
        self._shared: dict[str, asyncio.Task[HttpResponse]] = {}
        self._stop_profile = threading.Event()
        self._profiling = False

    def close(self) -> None:
        """Serve no more pages; those under way are left to themselves."""
        self._stop_profile.set()
        self._state.shutdown(wait=False, cancel_futures=True)
        self._debug.shutdown(wait=False, cancel_futures=True)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Route a request. Unknown pages are 404, wrong methods 405."""
        try:
            url = urlsplit(request.target)
            urlsplit(f"//{request.host}"), urlsplit(request.origin)
        except ValueError as error:
            return HttpResponse(400, _TEXT, f"{error}\n".encode())
        path = url.path
        parts = [unquote(part) for part in path.strip("/").split("/")]
        name = "/".join(parts)
        pages: dict[str, tuple[str, Callable[[], HttpResponse]]] = {
            "status": ("GET", self._status),
            "about": ("GET", lambda: _json(self.pump.about())),
            "drainers": ("GET", self._drainers),
            "metrics": ("GET", self._metrics),
            "capture": ("GET", self._capture),
            "debug": ("GET", lambda: _text(debug.INDEX)),
            "debug/stack": ("GET", lambda: _text(debug.stacks())),
            "debug/memory": ("GET", lambda: _text(debug.memory())),
            "debug/profile": ("GET", _nothing),  # below
            "debug/gc/trigger": ("POST", self._collect),
        }
        method, page = pages.get(name, ("", None))
        if page is None and len(parts) == 3 and parts[0] == "state":
            method, page = "PUT", lambda: self._change(parts[1], parts[2])
        elif page is None and len(parts) == 3 and parts[0] == "verdict":
            method, page = "PUT", lambda: self._decide(parts[1], parts[2])
        elif page is None and len(parts) == 3 and parts[:2] == ["debug", "binlog"]:
            method, page = "GET", lambda: self._binlog(parts[2])
        if page is None:
            return HttpResponse(404, _TEXT, b"404 page not found\n")
        if request.method != method and not (method == "GET" and request.method == "HEAD"):
            return HttpResponse(405, _TEXT, f"{path} takes {method}\n".encode())
        if (method != "GET" or parts[0] == "debug") and (refusal := self._rejection(request)):
            return HttpResponse(403, _TEXT, f"{refusal}\n".encode())
        if name == "debug/profile":
            return await self._profile(url.query)
        if name in _SHARED:
            return await self._shared_answer(name, page)
        pool = self._debug if parts[0] == "debug" else self._state
        return await asyncio.get_running_loop().run_in_executor(pool, page)

    def _rejection(self, request: HttpRequest) -> str:
        """Return why the client may not operate the pump; "" if it may.

        A web page in an operator's browser names itself as the origin, and one whose name was made
        to lead here names that as the host.
        """
        if OPERATE not in request.roles:
            return (
                "the client's certificate isn't one of those that may operate (operate-allowed-cn)"
            )
        host = urlsplit(f"//{request.host}").hostname or ""
        # no stranger has one without
        if "." in host and host not in self._hosts and not _is_address(host):
            return f"unknown host {host}: use the one in advertise-addr, or its address"
        if request.origin and urlsplit(request.origin).netloc.lower() != request.host.lower():
            return f"pages of {request.origin} may not operate this pump"
        return ""

    async def _shared_answer(self, name: str, page: Callable[[], HttpResponse]) -> HttpResponse:
        task = self._shared.get(name)
        if task is None:
            task = self._shared[name] = asyncio.ensure_future(
                asyncio.get_running_loop().run_in_executor(self._state, page)
            )
            task.add_done_callback(lambda _: self._shared.pop(name, None))
        return await asyncio.shield(task)

    async def _profile(self, query: str) -> HttpResponse:
        given = parse_qs(query).get("seconds", ["5"])[-1]
        try:
            seconds = float(given)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < math.inf:
            text = f"invalid seconds {given!r}: expected a number above 0\n"
            return HttpResponse(400, _TEXT, text.encode())
        if self._profiling:
            return HttpResponse(
                429, _TEXT, b"a profile is being taken; ask again when it is done\n"
            )
        self._profiling = True
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        args = (seconds, self._stop_profile, asyncio.get_running_loop(), done)
        threading.Thread(target=_take_profile, args=args, name="pump-profile", daemon=True).start()
        done.add_done_callback(self._profiled)
        return _text(await asyncio.shield(done))

    def _profiled(self, _done: asyncio.Future[str]) -> None:
        self._profiling = False

    def _status(self) -> HttpResponse:
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
        return _json(
            {
                "status": statuses,
                "CommitTS": commit_ts,
                "Checkpoint": {},
                "ErrMsg": "; ".join(errors),
            }
        )

    def _drainers(self) -> HttpResponse:
        return _json(self.pump.drainers())

    def _capture(self) -> HttpResponse:
        found = self.pump.capture_status()
        if found is None:
            return HttpResponse(404, _TEXT, b"this pump takes binlogs: it has no [capture]\n")
        return _json(found)

    def _metrics(self) -> HttpResponse:
        return HttpResponse(200, CONTENT_TYPE_PLAIN_0_0_4, exposition(self.registry))

    def _change(self, node_id: str, action: str) -> HttpResponse:
        state = self.pump.state
        if node_id != self.pump.node_id:
            return _verdict(
                _OTHER, f"invalide nodeID {node_id}, this pump's nodeID is {self.pump.node_id}"
            )
        if state != "online":
            return _verdict(_OTHER, f"this pump's state is {state}, apply {action} failed!")
        if action not in ("pause", "close"):
            return _verdict(_OTHER, f"invalide action {action}")
        self.pump.leave(action)
        return _verdict(_OK, f"apply action {action} success!")

    def _decide(self, start_ts: str, outcome: str) -> HttpResponse:
        if not start_ts.isdigit() or not (outcome.isdigit() or outcome == "rollback"):
            return HttpResponse(400, _TEXT, b"PUT /verdict/<start_ts>/<commit_ts or rollback>\n")
        try:
            self.pump.decide(int(start_ts), int(outcome) if outcome.isdigit() else 0)
        except KeyError as error:
            return HttpResponse(404, _TEXT, f"{error.args[0]}\n".encode())
        except Exception as error:
            return HttpResponse(409, _TEXT, f"{error}\n".encode())
        return _text(f"transaction {start_ts}: {outcome}\n")

    def _collect(self) -> HttpResponse:
        started = self.pump.collect_garbage()
        return _text("trigger gc success\n" if started else "gc is working\n")

    def _binlog(self, ts: str) -> HttpResponse:
        if not ts.isdigit():
            return _text(f"invalid timestamp {ts!r}\n")
        try:
            return _text(self.pump.describe_binlog(int(ts)))
        except Exception as error:  # the original answers 200 with the error's text, too
            return _text(f"{error.args[0] if error.args else error}\n")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _json(value: Any) -> HttpResponse:
    return HttpResponse(200, "application/json", json.dumps(value).encode())


def _verdict(code: int, message: str) -> HttpResponse:
    text = json.dumps({"message": message, "code": code, "data": None}, indent=2)
    return HttpResponse(200, "application/json; charset=utf-8", text.encode())


def _text(text: str) -> HttpResponse:
    return HttpResponse(200, _TEXT, text.encode())


def _nothing() -> HttpResponse:
    raise AssertionError("this page is made elsewhere")


def _take_profile(
    seconds: float,
    stop: threading.Event,
    loop: asyncio.AbstractEventLoop,
    done: asyncio.Future[str],
) -> None:
    text = debug.profile(seconds, stop)
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(done.set_result, text)

"""HTTP/1.1 on an accepted connection: h11 does the protocol, an async handler answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import h11

from sluice.pump_service.config import ROLES

_log = logging.getLogger(__name__)

_MAX_HEAD_BYTES = 65536
_MAX_BODY_BYTES = 65536
_MAX_PIECES = 256  # of a body; h11 takes its time for each
_IDLE_TIMEOUT_S = 75.0


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A complete request.

    `target` is path and query as sent, `host` and `origin` are headers, empty if not there.
    """

    method: str
    target: str
    body: bytes
    host: str = ""
    origin: str = ""
    roles: frozenset[str] = ROLES
    """what its client may do"""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer: status, content type and body."""

    status: int
    content_type: str
    body: bytes


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class Http1Connection(asyncio.Protocol):
    """One connection, kept alive as HTTP/1.1 says; requests are answered one after the other."""

    def __init__(self, handler: Handler, roles: frozenset[str] = ROLES) -> None:
        self._handler = handler
        self._roles = roles
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._request: h11.Request | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._full = False  # the transport takes nothing more
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        self._resume()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        try:
            self._http.receive_data(data)
            self._events()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, str(error))

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_IDLE_TIMEOUT_S, self._transport.abort)

    def _events(self) -> None:
        while self._task is None and not self._full:
            event = self._http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.ConnectionClosed):
                self._transport.close()
                return
            if isinstance(event, h11.Request):
                self._request = event
                self._body = []
                self._size = 0
                if self._http.they_are_waiting_for_100_continue:
                    self._send(h11.InformationalResponse(status_code=100, headers=[]))
            elif isinstance(event, h11.Data):
                self._body.append(bytes(event.data))
                self._size += len(event.data)
                if self._size > _MAX_BODY_BYTES or len(self._body) > _MAX_PIECES:
                    self._refuse(
                        413,
                        f"a body above {_MAX_BODY_BYTES} bytes, or in more than {_MAX_PIECES}"
                        " pieces",
                    )
                    return
            elif isinstance(event, h11.EndOfMessage):
                assert self._request is not None
                headers = {name: value.decode("latin-1") for name, value in self._request.headers}
                request = HttpRequest(
                    self._request.method.decode("ascii"),
                    self._request.target.decode("ascii"),
                    b"".join(self._body),
                    headers.get(b"host", ""),
                    headers.get(b"origin", ""),
                    self._roles,
                )
                self._transport.pause_reading()  # what the client sends meanwhile stays with it
                self._task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: HttpRequest) -> None:
        assert self._timer is not None
        self._timer.cancel()
        try:
            response = await self._handler(request)
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.target)
            response = HttpResponse(
                500, "text/plain; charset=utf-8", f"{type(error).__name__}: {error}\n".encode()
            )
        self._task = None
        if self._transport.is_closing():
            return
        self._respond(response, head_only=request.method == "HEAD")
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._wait()
            self._resume()
        else:
            self._wait()  # the client may take its time to read
            self._transport.close()

    def _resume(self) -> None:
        """Read on, once the answer has left; the next request may be here already."""
        if self._full or self._task is not None or self._transport.is_closing():
            return
        self._transport.resume_reading()
        try:
            self._events()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, str(error))

    def _respond(self, response: HttpResponse, *, head_only: bool = False) -> None:
        headers = [
            ("content-type", response.content_type),
            ("content-length", str(len(response.body))),
        ]
        self._send(h11.Response(status_code=response.status, headers=headers))
        if not head_only:
            self._send(h11.Data(data=response.body))
        self._send(h11.EndOfMessage())

    def _refuse(self, status: int, text: str) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = f"{text}\n".encode()
            headers = [
                ("content-type", "text/plain; charset=utf-8"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            self._send(h11.Response(status_code=status, headers=headers))
            self._send(h11.Data(data=body))
            self._send(h11.EndOfMessage())
        self._transport.close()

    def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._transport.write(data)

"""Accept connections, and hand each to the fast path or to HTTP/1 by its first bytes."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sluice.pump_service.config import Security
from sluice.pump_service.grpc_fastpath import ConnectionSlot, FastPathConnection, FastPathServer
from sluice.pump_service.grpc_fastpath.frames import PREFACE
from sluice.pump_service.grpc_fastpath.places import (
    ACCEPTED_CONNECTION_BYTES,
    HTTP1_CONNECTION_BYTES,
    TLS_CONNECTION_BYTES,
)
from sluice.pump_service.listener.tls import Contexts, roles_of

_log = logging.getLogger(__name__)

_FIRST_BYTES_TIMEOUT_S = 30.0
_GREETING_DELAY_S = 0.004
_MAX_GREETED_TOGETHER = 4
"""Connections without TLS greeted every `_GREETING_DELAY_S`.

With TLS it is one, which takes a millisecond or more.
"""
_HANDSHAKE_TIMEOUT_S = 15.0
_ACCEPT_TURN_S = 0.005
"""How long waiting connections are accepted in one turn of the loop."""
_NO_DESCRIPTOR_PAUSE_S = 0.2
_UNIX = "unix socket"
_USER_TIMEOUT_MS = 30_000


class Listener:
    """Accept connections. `http1` creates a protocol for HTTP/1."""

    def __init__(
        self,
        http1: Callable[[frozenset[str]], asyncio.Protocol],
        security: Security,
    ) -> None:
        self.security = security
        self._http1 = http1
        self.context: FastPathServer
        self._listening: list[tuple[socket.socket, Contexts | None]] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._waiting: deque[tuple[_CountedSocket, Contexts | None]] = deque()
        self._came = asyncio.Event()
        self._greeting: set[asyncio.Task[None]] = set()
        self._unix_path = ""
        self.connections: WeakSet[asyncio.Transport] = WeakSet()

    def use(self, context: FastPathServer) -> None:
        """Set the server for HTTP/2 connections; must come before `listen`."""
        self.context = context

    async def listen(
        self, host: str, port: int, tls: Contexts | None, backlog: int = 1024
    ) -> tuple[str, int]:
        """Bind; return the address. Raises OSError if it is in use."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sockets = [
            _bind(family, address, backlog) for family, _, _, _, address in dict.fromkeys(found)
        ]
        self._listening += [(sock, tls) for sock in sockets]
        name = sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def listen_unix(self, path: str) -> None:
        """Bind a Unix socket, without TLS (the original's `socket`).

        Replaces a socket that a killed pump left; raises OSError if a process listens there.
        """
        path = path.removeprefix("unix://").removeprefix("unix:")
        probe = socket.socket(socket.AF_UNIX)
        try:
            probe.connect(path)
            raise OSError(errno.EADDRINUSE, "another process listens there")
        except (FileNotFoundError, ConnectionRefusedError):
            pass
        finally:
            probe.close()
        self._listening.append((_bind(socket.AF_UNIX, path, 100), None))
        self._unix_path = path

    async def serve(self) -> None:
        """Start accepting."""
        loop = asyncio.get_running_loop()
        self._accepting.append(loop.create_task(self._greet_in_turn()))
        self._accepting += [
            loop.create_task(self._accept(sock, tls)) for sock, tls in self._listening
        ]

    def stop_accepting(self) -> None:
        """Close the listening sockets; open connections stay."""
        for task in self._accepting:
            task.cancel()
        for sock, _ in self._listening:
            sock.close()
        self._accepting.clear()
        self._listening.clear()
        if self._unix_path:
            Path(self._unix_path).unlink(missing_ok=True)
            self._unix_path = ""

    async def _accept(self, listening: socket.socket, tls: Contexts | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._take(*await loop.sock_accept(listening), tls)
                until = loop.time() + _ACCEPT_TURN_S
                # One a turn of the loop isn't enough: a writer that connects would wait until the
                # crowd before it in the system's queue is through.
                while loop.time() < until:
                    self._take(*listening.accept(), tls)
            except BlockingIOError:
                pass  # none waits any more
            except OSError as error:  # no descriptor is left, or the client is gone
                _log.warning("can't accept a connection: %s", error)
                await asyncio.sleep(_NO_DESCRIPTOR_PAUSE_S)
            await asyncio.sleep(0)  # a crowd of new connections must not starve the others

    def _take(self, taken: socket.socket, address: Any, tls: Contexts | None) -> None:
        """Give an accepted connection a place, and greet it now or in its turn."""
        host = address[0] if isinstance(address, tuple) else _UNIX
        place = self.context.places.acquire(
            host,
            ACCEPTED_CONNECTION_BYTES
            if tls is None
            else ACCEPTED_CONNECTION_BYTES + TLS_CONNECTION_BYTES,
        )
        if place is None:
            taken.close()
            return
        sock = _CountedSocket(taken, place, host)
        place.end = sock.close
        if self.context.places.has_written(place):
            self._begin(sock, tls)
        else:
            self._waiting.append((sock, tls))
            self._came.set()

    async def _greet_in_turn(self) -> None:
        """Greet connections of addresses that haven't written, at a limited rate, the newest first.

        Of a crowd that arrives faster, the oldest are ended to make room, so greeting the oldest
        first would greet none.
        """
        while True:
            await self._came.wait()
            self._came.clear()
            while self._waiting:
                for _ in range(_MAX_GREETED_TOGETHER):
                    sock, tls = self._waiting.pop() if self._waiting else (None, None)
                    if sock is None or (
                        sock.fileno() >= 0 and self._begin(sock, tls) and tls is not None
                    ):
                        break
                    if not self.context.strangers.is_left():
                        break  # those greeted before use up what strangers get of the loop
                await asyncio.sleep(_GREETING_DELAY_S)

    def _begin(self, sock: _CountedSocket, tls: Contexts | None) -> bool:
        task = asyncio.get_running_loop().create_task(self._greet(sock, tls))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)
        sock.place.end = task.cancel
        return True

    async def _greet(self, sock: _CountedSocket, tls: Contexts | None) -> None:
        more = {"ssl_handshake_timeout": _HANDSHAKE_TIMEOUT_S} if tls is not None else {}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _ProtocolSniffer(self, sock.place),
                sock,
                ssl=tls() if tls is not None else None,
                **more,
            )
        except OSError as error:  # also OpenSSL's
            _log.debug("no connection with %s: %s", sock.host, error)
        except BaseException:
            sock.close()
            raise

    def close_all(self) -> None:
        """Close all open connections."""
        for sock, _ in self._waiting:
            sock.close()
        self._waiting.clear()
        for task in (*self._greeting,):
            task.cancel()
        for transport in list(self.connections):
            sock = transport.get_extra_info("socket")
            # asyncio can't abort a transport that was closed with unsent bytes and has sent them.
            if sock is not None and sock.fileno() >= 0:
                transport.abort()

    def http1(self, roles: frozenset[str]) -> asyncio.Protocol:
        """Return a protocol for a new HTTP/1 connection of a client with these roles."""
        return self._http1(roles)


def _bind(family: int, address: str | tuple[Any, ...], backlog: int) -> socket.socket:
    # asyncio sets TCP_NODELAY only on sockets whose protocol is given as TCP.
    sock = socket.socket(
        family, socket.SOCK_STREAM, 0 if family == socket.AF_UNIX else socket.IPPROTO_TCP
    )
    try:
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        elif Path(str(address)).is_socket():
            Path(str(address)).unlink()  # no process listens there any more
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class _CountedSocket(socket.socket):
    """Count a connection's socket until it is closed, whichever protocol owns it then."""

    def __init__(self, taken: socket.socket, place: ConnectionSlot, host: str) -> None:
        super().__init__(taken.family, taken.type, taken.proto, taken.detach())
        self.setblocking(False)
        self.host = host
        self.place = place

    def close(self) -> None:
        super().close()
        self.place.close()


class _ProtocolSniffer(asyncio.Protocol):
    """Hold a connection until its first bytes distinguish HTTP/2 from HTTP/1."""

    def __init__(self, listener: Listener, place: ConnectionSlot) -> None:
        self._listener = listener
        self._place = place
        self._data = b""
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._place.end = transport.abort
        # Permissions of the file system decide who may open the Unix socket.
        speaks_tls = transport.get_extra_info("ssl_object") is not None
        if speaks_tls:
            self._place.roles = roles_of(
                self._listener.security, transport.get_extra_info("peercert")
            )
            if not self._place.roles:
                _log.warning(
                    "connection refused: its certificate's common name isn't in cert-allowed-cn"
                )
                transport.abort()
                return
        self._listener.connections.add(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        self._timer = asyncio.get_running_loop().call_later(_FIRST_BYTES_TIMEOUT_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._place.is_open:
            return  # the connection is closing
        context = self._listener.context
        if context.places.has_written(self._place):
            self._decide(self._data)
        elif not context.strangers.read(self._decide, self._data):
            self._transport.pause_reading()
            context.paused_reads.put_off(self._resume)

    def _resume(self) -> None:
        if self._place.is_open:
            self._transport.resume_reading()
            self._decide(self._data)

    def _decide(self, data: bytes) -> None:
        """Give the connection the protocol of its first bytes, if they distinguish one."""
        head = data[: len(PREFACE)]
        if PREFACE.startswith(head):
            if len(head) < len(PREFACE):
                return  # both are possible
            protocol: asyncio.Protocol = FastPathConnection(self._listener.context, self._place)
        elif self._place.resize(self._place.size + HTTP1_CONNECTION_BYTES):
            protocol = self._listener.http1(self._place.roles)
        else:
            self._transport.abort()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)


_TARGET_NOFILE = 65_536
_RESERVED_DESCRIPTORS = 1024  # for store, LevelDB, own connections; half of a smaller limit


def raise_nofile_limit() -> int:
    """Raise the soft limit of open files up to the hard one, at most 65,536; return the result."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _TARGET_NOFILE if hard == resource.RLIM_INFINITY else min(_TARGET_NOFILE, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            _log.warning("can't raise the limit of open files, it stays at %d: %s", soft, error)
    return nofile_limit()


def nofile_limit() -> int:
    """Return the soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _TARGET_NOFILE if soft == resource.RLIM_INFINITY else soft


def max_connection_descriptors() -> int:
    """Return how many descriptors all connections may take together.

    A connection that took the last one would keep the value log from beginning its next segment.
    """
    return max(nofile_limit() - _RESERVED_DESCRIPTORS, nofile_limit() // 2)

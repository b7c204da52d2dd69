"""The one address: looks at a connection's first bytes and gives it to the lane, to grpcio or to HTTP/1."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from weakref import WeakSet

from pump_service.config import Security
from pump_service.lane import Lane, LaneContext
from pump_service.lane.frames import PREFACE
from pump_service.splice import Splices
from pump_service.tls import allowed

_log = logging.getLogger(__name__)

_FIRST_BYTES_S = 30.0
_MAX_CONNECTIONS = 8192
_USER_TIMEOUT_MS = 30_000


class Front:
    """Accepts connections. `grpc_path` is the Unix socket of the grpcio server, `http1` makes a protocol for HTTP/1."""

    def __init__(self, grpc_path: str, http1: Callable[[], asyncio.Protocol], security: Security) -> None:
        self.security = security
        self._splices = Splices(grpc_path)
        self.splice = self._splices.join
        self._http1 = http1
        self._context: LaneContext | None = None
        self._servers: list[asyncio.Server] = []
        self._unix_path = ""
        self.connections: WeakSet[asyncio.Transport] = WeakSet()

    def use(self, context: LaneContext) -> None:
        """The context for lanes; must come before `listen`."""
        self._context = context

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None, backlog: int = 1024) -> tuple[str, int]:
        """Bind; returns the address. OSError if it is taken."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _Sniffer(self), host or None, port, ssl=tls, backlog=backlog, start_serving=False
        )
        self._servers.append(server)
        name = server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def listen_unix(self, path: str) -> None:
        """A second way in: a Unix socket, without TLS (the original's `socket`). A socket that a killed pump left is
        replaced; OSError if somebody listens there."""
        path = path.removeprefix("unix://").removeprefix("unix:")
        probe = socket.socket(socket.AF_UNIX)
        try:
            probe.connect(path)
            raise OSError(errno.EADDRINUSE, "another process listens there")
        except (FileNotFoundError, ConnectionRefusedError):
            pass
        finally:
            probe.close()
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_unix_server(lambda: _Sniffer(self), path, start_serving=False))
        self._unix_path = path

    async def serve(self) -> None:
        """Begin to accept."""
        for server in self._servers:
            await server.start_serving()

    def stop_accepting(self) -> None:
        """Close the listening sockets; open connections stay."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._unix_path:
            Path(self._unix_path).unlink(missing_ok=True)
            self._unix_path = ""

    def close_all(self) -> None:
        """Close what is still open."""
        self._splices.cancel()
        for transport in list(self.connections):
            transport.abort()

    def lane(self) -> Lane:
        """A protocol for a new HTTP/2 connection."""
        assert self._context is not None
        return Lane(self._context)

    def http1(self) -> asyncio.Protocol:
        """A protocol for a new HTTP/1 connection."""
        return self._http1()


class _Sniffer(asyncio.Protocol):
    """Holds a connection until its first bytes tell HTTP/2 from HTTP/1."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._data = b""
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._front.connections) >= _MAX_CONNECTIONS:
            _log.warning("connection refused: %d are open", len(self._front.connections))
            transport.abort()
            return
        # Who may open the Unix socket is the file system's to say.
        speaks_tls = transport.get_extra_info("ssl_object") is not None
        if speaks_tls and not allowed(self._front.security, transport.get_extra_info("peercert")):
            _log.warning("connection refused: its certificate's common name isn't in cert-allowed-cn")
            transport.abort()
            return
        self._front.connections.add(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        self._timer = asyncio.get_running_loop().call_later(_FIRST_BYTES_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data[: len(PREFACE)]
        if PREFACE.startswith(head):
            if len(head) < len(PREFACE):
                return  # both are possible
            protocol: asyncio.Protocol = self._front.lane()
        else:
            protocol = self._front.http1()
        if self._timer is not None:
            self._timer.cancel()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._data)

"""Joins a client's connection with one to the grpcio server behind the port, byte for byte.

Whichever side speaks first is heard: each end knows the other from the moment it can receive, and what comes before the
other can take it is kept.
"""

from __future__ import annotations

import asyncio
import logging

from pump_service.front.admission import SPLICED, Admission
from pump_service.lane.frames import ACK, HEAD, PREFACE, SETTINGS

_log = logging.getLogger(__name__)

_CONNECT_S = 5.0


class Splices:
    """The spliced connections; `grpc_path` is the Unix socket of the grpcio server. `admission` counts
    what they take.
    """

    def __init__(self, grpc_path: str, admission: Admission) -> None:
        self._grpc_path = grpc_path
        self._admission = admission
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, transport: asyncio.Transport, first: bytes, acks_to_drop: int, *, our_ack_pending: bool) -> None:
        """Connect and pass on `first`, then all that comes, but for acknowledgements of SETTINGS that would be one too
        many: `acks_to_drop` of the server's, and one of the client's if ours is still pending."""
        name = transport.get_extra_info("peername")
        host = name[0] if isinstance(name, tuple) else "unix socket"
        if not self._admission.enter(host, SPLICED):
            transport.abort()
            return
        client = Pipe(AckFilter(1 if our_ack_pending else 0, len(PREFACE)), None)
        transport.pause_reading()
        transport.set_protocol(client)
        client.connection_made(transport)
        client.data_received(first)
        task = asyncio.get_running_loop().create_task(self._connect(client, acks_to_drop, host))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Look after them no more."""
        for task in self._tasks:
            task.cancel()

    async def _connect(self, client: Pipe, acks_to_drop: int, host: str) -> None:
        loop = asyncio.get_running_loop()
        server = Pipe(AckFilter(acks_to_drop, 0), client)
        try:
            await asyncio.wait_for(loop.create_unix_connection(lambda: server, self._grpc_path), _CONNECT_S)
            await server.ended.wait()
        except OSError as error:  # TimeoutError is one
            _log.error("the grpc server at %s doesn't take connections: %s", self._grpc_path, error)
            client.transport.abort()
        finally:
            self._admission.leave(host, SPLICED)


class AckFilter:
    """Removes the first `count` acknowledgements of SETTINGS from a stream of frames, then lets bytes pass.

    Holds back at most a frame's head, whatever size the frame announces.
    """

    def __init__(self, count: int, skip: int) -> None:
        self._count = count
        self._pass = skip  # bytes that pass unseen: what lies before the first frame, or is left of a frame
        self._head = b""

    def pass_on(self, data: bytes) -> bytes:
        """What of `data` (and what was kept back) may go on."""
        if not self._count:
            return data
        buf = self._head + data
        out = []
        pos, end = 0, len(buf)
        while self._count:
            step = min(self._pass, end - pos)
            out.append(buf[pos : pos + step])
            pos += step
            self._pass -= step
            if self._pass or end - pos < HEAD.size:
                break
            head, flags, _ = HEAD.unpack_from(buf, pos)
            if head == SETTINGS and flags & ACK:  # its length is 0
                self._count -= 1
                pos += HEAD.size
            else:
                self._pass = HEAD.size + (head >> 8)
        if not self._count:
            out.append(buf[pos:])
            pos = end
        self._head = buf[pos:]
        return b"".join(out)


class Pipe(asyncio.Protocol):
    """One end of a spliced connection; what it receives goes to `other`. The server's end is made with the client's as
    its `other`, and makes itself known to it when it is connected.
    """

    def __init__(self, acks: AckFilter, other: Pipe | None) -> None:
        self._acks = acks
        self._other = other
        self._early: list[bytes] = []
        self._full = False
        self._lost = False
        self.ended = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._other is not None:
            self._other.meet(self)

    def meet(self, server: Pipe) -> None:
        """The other end is there: it gets what came early, and reading begins."""
        if self._lost:
            server.transport.abort()
            return
        self._other = server
        for data in self._early:
            server.transport.write(data)
        self._early.clear()
        if self._full:
            server.transport.pause_reading()
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        passed = self._acks.pass_on(data)
        if not passed:
            return
        if self._other is None:
            self._early.append(passed)
        elif not self._other._lost:
            self._other.transport.write(passed)

    def pause_writing(self) -> None:
        self._full = True
        if self._other is not None and not self._other._lost:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        if self._other is not None and not self._other._lost:
            self._other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self.ended.set()
        if self._other is not None and not self._other._lost:
            self._other.transport.close()

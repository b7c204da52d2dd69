"""A reader of PullBinlogs that takes next to nothing of the machine.

It counts messages, and decodes none. It stands for a Drainer in the pump's benchmark: the pump
does all that a Drainer makes it do, and the reader's own time is a few percent of a core. Runs in
a process of its own.
"""

from __future__ import annotations

import multiprocessing
import socket
from multiprocessing.sharedctypes import Synchronized

from sluice.pump_service.grpc_fastpath import frames as f
from sluice.tidb import pb

_PREFIX = 5  # of a gRPC message
_UPDATE_BYTES = 1 << 24


class PullReader:
    """Pull everything that the pump at `host:port` has after `after_ts`, and follow it."""

    def __init__(self, host: str, port: int, cluster_id: int, after_ts: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._count: Synchronized[int] = context.Value("q", 0)
        self._process = context.Process(
            target=_follow, args=(host, port, cluster_id, after_ts, self._count), daemon=True
        )
        self._process.start()

    @property
    def messages(self) -> int:
        """Transactions and fake binlogs so far."""
        return self._count.value

    @property
    def alive(self) -> bool:
        """Return whether it still follows."""
        return self._process.is_alive()

    def __enter__(self) -> PullReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.join(10)


def _follow(host: str, port: int, cluster_id: int, after_ts: int, count: Synchronized[int]) -> None:
    request = pb.pump.PullBinlogReq(
        clusterID=cluster_id, startFrom=pb.pump.Pos(offset=after_ts)
    ).SerializeToString()
    message = b"\0" + len(request).to_bytes(_PREFIX - 1, "big") + request
    headers = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/binlog.Pump/PullBinlogs"),
        (b":authority", f"{host}:{port}".encode()),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    with socket.create_connection((host, port), 30) as connection:
        connection.settimeout(None)
        connection.sendall(
            f.PREFACE
            + f.settings({f.SETTING_INITIAL_WINDOW_SIZE: f.MAX_WINDOW})
            + f.window_update(0, f.MAX_WINDOW - f.DEFAULT_WINDOW)
            + f.header_frames(1, headers, end_stream=False)
            + f.frame(f.DATA, f.END_STREAM, 1, message)
        )
        rest = b""
        body = bytearray()
        unacknowledged = 0
        while data := connection.recv(1 << 18):
            buffer = rest + data
            at = 0
            while len(buffer) - at >= f.HEAD.size:
                head, flags, _ = f.HEAD.unpack_from(buffer, at)
                stop = at + f.HEAD.size + (head >> 8)
                if stop > len(buffer):
                    break
                kind = head & 0xFF
                if kind == f.DATA:
                    body += buffer[at + f.HEAD.size : stop]
                    unacknowledged += stop - at - f.HEAD.size
                elif kind == f.PING and not flags & f.ACK:
                    connection.sendall(f.frame(f.PING, f.ACK, 0, buffer[at + f.HEAD.size : stop]))
                elif kind == f.HEADERS and flags & f.END_STREAM:
                    return
                at = stop
            rest = buffer[at:]
            found, used = _messages(body)
            del body[:used]
            count.value += found
            if unacknowledged > _UPDATE_BYTES:
                connection.sendall(
                    f.window_update(0, unacknowledged) + f.window_update(1, unacknowledged)
                )
                unacknowledged = 0


def _messages(body: bytearray) -> tuple[int, int]:
    """Count the whole messages, and the bytes that they take."""
    found = at = 0
    while len(body) - at >= _PREFIX:
        stop = at + _PREFIX + int.from_bytes(body[at + 1 : at + _PREFIX], "big")
        if stop > len(body):
            break
        found, at = found + 1, stop
    return found, at

"""Clients that take what they can of a pump.

Each plays its part until its `stop` is set, and begins again when the pump drops its connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import zlib
from collections.abc import Callable

import grpc

from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.hpack import encode_headers
from sluice.tidb import pb, tso

_PAUSE_S = 0.05


class Connection:
    """A raw HTTP/2 connection."""

    def __init__(
        self, address: str, settings: dict[int, int] | None = None, source: str = ""
    ) -> None:
        host, port = address.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), 10, (source, 0) if source else None)
        self.sock.settimeout(2)
        self.sock.sendall(f.PREFACE + f.settings(settings or {}))

    def send(self, *frames: bytes) -> None:
        """Send frames as they are. Raises OSError."""
        self.sock.sendall(b"".join(frames))

    def close(self) -> None:
        """Close the socket without a GOAWAY."""
        self.sock.close()


def headers(stream: int, path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """Return a HEADERS frame that begins a gRPC call, with `more` header fields."""
    block = encode_headers(
        (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"pump"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            *more,
        )
    )
    return f.frame(f.HEADERS, f.END_HEADERS, stream, block)


def call(stream: int, path: bytes, message: bytes) -> bytes:
    """Return the frames of a whole gRPC call with one message."""
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return headers(stream, path) + f.frame(f.DATA, f.END_STREAM, stream, body)


_WRITE, _PULL = b"/binlog.Pump/WriteBinlog", b"/binlog.Pump/PullBinlogs"
_BOUNDS, _READ = b"/sluice.Window/Bounds", b"/sluice.Window/Read"
Stop = threading.Event


def _probe(cluster_id: int) -> bytes:
    return bytes(pb.pump.WriteBinlogReq(clusterID=cluster_id, payload=b"").SerializeToString())


def _pull(cluster_id: int) -> bytes:
    return bytes(pb.pump.PullBinlogReq(clusterID=cluster_id).SerializeToString())


def answers_not_taken(address: str, cluster_id: int, stop: Stop) -> None:
    """Send thousands of calls with no window for answers, and WINDOW_UPDATEs of a byte."""
    connection = Connection(address, {f.SETTING_INITIAL_WINDOW_SIZE: 0})
    probe = _probe(cluster_id)
    for first in range(1, 100_001, 1000):
        connection.send(*(call(stream, _WRITE, probe) for stream in range(first, first + 1000, 2)))
        if stop.is_set():
            break
    while not stop.is_set():
        connection.send(f.window_update(0, 1) * 60)
        time.sleep(_PAUSE_S)
    connection.close()


def settings_flood(address: str, cluster_id: int, stop: Stop) -> None:
    """Make calls whose answers wait, and send SETTINGS that move the window of all of them."""
    connection = Connection(address, {f.SETTING_INITIAL_WINDOW_SIZE: 0})
    connection.send(*(call(stream, _WRITE, _probe(cluster_id)) for stream in range(1, 8001, 2)))
    while not stop.is_set():
        connection.send(f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 0}) * 2000)


def pings(address: str, cluster_id: int, stop: Stop) -> None:
    """Send PINGs without an end."""
    connection = Connection(address)
    connection.send(call(1, _WRITE, _probe(cluster_id)))
    while not stop.is_set():
        connection.send(f.frame(f.PING, 0, 0, b"12345678") * 4000)
        with contextlib.suppress(BlockingIOError):
            connection.sock.recv(1 << 20, socket.MSG_DONTWAIT)


def rapid_reset(address: str, cluster_id: int, stop: Stop) -> None:
    """Begin PullBinlogs and reset them."""
    connection = Connection(address)
    message, stream = _pull(cluster_id), 1
    while not stop.is_set():
        frames = []
        for _ in range(200):
            frames += [call(stream, _PULL, message), f.reset(stream, f.CANCEL)]
            stream += 2
        connection.send(*frames)


def _unread(address: str, cluster_id: int, stop: Stop, window: int) -> None:
    connections = []
    for _ in range(20):
        connection = Connection(address, {f.SETTING_INITIAL_WINDOW_SIZE: window})
        connection.send(f.window_update(0, f.MAX_WINDOW - f.DEFAULT_WINDOW))
        connection.send(*(call(stream, _PULL, _pull(cluster_id)) for stream in range(1, 81, 2)))
        connections.append(connection)
    stop.wait()
    for connection in connections:
        connection.close()


def readers_whose_socket_is_full(address: str, cluster_id: int, stop: Stop) -> None:
    """Open 800 streams with all the window there is, and read no byte of them."""
    _unread(address, cluster_id, stop, f.MAX_WINDOW)


def readers_without_window(address: str, cluster_id: int, stop: Stop) -> None:
    """Open 800 streams that may not send."""
    _unread(address, cluster_id, stop, 0)


def uploads_that_never_end(address: str, cluster_id: int, stop: Stop) -> None:
    """Send large messages on many streams of many connections, all of them but their ends."""
    connections = [Connection(address) for _ in range(8)]
    head = b"\0" + (1 << 30).to_bytes(4, "big")
    for connection in connections:
        connection.send(call(1, _WRITE, _probe(cluster_id)))
    time.sleep(0.2)
    stream = 3
    while not stop.is_set():
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(headers(stream, _WRITE), f.frame(f.DATA, 0, stream, head))
                connection.send(*(f.frame(f.DATA, 0, stream, bytes(16_000)) for _ in range(60)))
        stream += 2
        time.sleep(_PAUSE_S)


def tiny_frames(address: str, cluster_id: int, stop: Stop) -> None:
    """Upload in frames of one byte and of none."""
    connection = Connection(address)
    connection.send(call(1, _WRITE, _probe(cluster_id)))
    connection.send(headers(3, _WRITE), f.frame(f.DATA, 0, 3, b"\0" + (1 << 30).to_bytes(4, "big")))
    frames = (f.frame(f.DATA, 0, 3, b"x") + f.frame(f.DATA, 0, 3, b"")) * 1000
    while not stop.is_set():
        connection.send(frames)


def behind_a_profile(address: str, cluster_id: int, stop: Stop) -> None:
    """Send as much over HTTP/1 as goes behind a request that takes long."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.settimeout(2)
        sock.sendall(b"GET /debug/profile?seconds=100 HTTP/1.1\r\nHost: x\r\n\r\n")
        while not stop.is_set():
            sock.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)


def profiles(address: str, cluster_id: int, stop: Stop) -> None:
    """Ask for 40 profiles at a time."""
    host, port = address.rsplit(":", 1)
    socks = [socket.create_connection((host, int(port)), 10) for _ in range(40)]
    for sock in socks:
        sock.sendall(b"GET /debug/profile?seconds=100 HTTP/1.1\r\nHost: x\r\n\r\n")
    stop.wait()
    for sock in socks:
        sock.close()


def a_frame_in_pieces(address: str, cluster_id: int, stop: Stop) -> None:
    """Send a frame of 16 MiB, in packets of 100 bytes, and no acknowledgement of SETTINGS.

    On a connection that goes to grpcio.
    """
    connection = Connection(address)
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.send(
        headers(1, _BOUNDS),
        (0xFFFFFF << 8 | f.DATA).to_bytes(4, "big") + b"\0" + (1).to_bytes(4, "big"),
    )
    while not stop.is_set():
        connection.send(bytes(100))
        time.sleep(0.001)


def bounds_that_wait(address: str, cluster_id: int, stop: Stop) -> None:
    """Ask for 600 Bounds at a time that wait a minute for a timestamp that doesn't come."""
    message = pb.window.BoundsRequest(
        cluster_id=cluster_id, fresh_ts=tso.wall_clock() + tso.span(60_000), wait_ms=60_000
    )
    _many_calls(address, _BOUNDS, message.SerializeToString(), 600, stop)


def windows_that_nobody_reads(address: str, cluster_id: int, stop: Stop) -> None:
    """Ask for 200 Reads at a time."""
    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary(
            _BOUNDS.decode(), response_deserializer=pb.window.BoundsResponse.FromString
        )
        hi = ask(
            pb.window.BoundsRequest(cluster_id=cluster_id, wait_ms=1000).SerializeToString(),
            timeout=10,
        ).hi
    message = pb.window.ReadRequest(cluster_id=cluster_id, lo=0, hi=hi)
    _many_calls(address, _READ, message.SerializeToString(), 200, stop)


def _many_calls(address: str, path: bytes, message: bytes, count: int, stop: Stop) -> None:
    channels = [
        grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        for _ in range(count // 20)
    ]
    calls = [
        channel.unary_stream(path.decode())(message, timeout=120)
        for channel in channels
        for _ in range(20)
    ]
    stop.wait()
    for each in calls:
        each.cancel()
    for channel in channels:
        channel.close()


def idle_connections(address: str, cluster_id: int, stop: Stop) -> None:
    """Open as many connections as are given."""
    host, port = address.rsplit(":", 1)
    socks: list[socket.socket] = []
    with contextlib.suppress(OSError):
        while len(socks) < 1500 and not stop.is_set():
            socks.append(socket.create_connection((host, int(port)), 2))
    stop.wait()
    for sock in socks:
        sock.close()


def frames_on_closed_streams(address: str, cluster_id: int, stop: Stop) -> None:
    """Send HEADERS, DATA and WINDOW_UPDATEs for an answered stream, on 20 connections."""
    connections = [Connection(address) for _ in range(20)]
    for connection in connections:
        connection.send(call(1, _WRITE, _probe(cluster_id)))
        connection.sock.settimeout(0)
    frames = (headers(1, _WRITE) + f.frame(f.DATA, 0, 1, b"") + f.window_update(1, 1)) * 1000
    rests = dict.fromkeys(connections, b"")
    while not stop.is_set():
        for connection in connections:
            data = rests[connection] or frames
            with contextlib.suppress(BlockingIOError):
                data = data[connection.sock.send(data) :]
            rests[connection] = data
            with contextlib.suppress(BlockingIOError):
                connection.sock.recv(1 << 20)
        time.sleep(0.001)
    for connection in connections:
        connection.close()


def messages_that_expand(address: str, cluster_id: int, stop: Stop) -> None:
    """Send a WriteBinlog of 256 KiB that expands to 256 MiB.

    On a connection that began with another call.
    """
    bomb = zlib.compress(bytes(256 << 20), 9, wbits=31)
    body = b"\1" + len(bomb).to_bytes(4, "big") + bomb
    while not stop.is_set():
        connection = Connection(address, {f.SETTING_INITIAL_WINDOW_SIZE: f.MAX_WINDOW})
        connection.send(
            call(1, b"/binlog.Cistern/Notify", b""), headers(3, _WRITE, (b"grpc-encoding", b"gzip"))
        )
        for at in range(0, len(body), 16_000):
            part = body[at : at + 16_000]
            connection.send(
                f.frame(f.DATA, f.END_STREAM if at + 16_000 >= len(body) else 0, 3, part)
            )
        with contextlib.suppress(TimeoutError):
            connection.sock.recv(65536)
        connection.close()


def unfinished_messages(address: str, cluster_id: int, stop: Stop) -> None:
    """Open 400 connections, each with a MiB of a message that doesn't end."""
    connections = []
    for number in range(400):
        connection = Connection(address, source=f"127.0.0.{2 + number % 8}")
        connection.send(call(1, _WRITE, _probe(cluster_id)), headers(3, _WRITE))
        connection.send(f.frame(f.DATA, 0, 3, b"\0" + (1 << 30).to_bytes(4, "big")))
        connections.append(connection)
    for _ in range(63):
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(f.frame(f.DATA, 0, 3, bytes(16_000)))
    stop.wait()
    for connection in connections:
        connection.close()


def frames_before_a_call(address: str, cluster_id: int, stop: Stop) -> None:
    """Open 200 connections with 250 frames of 16 KB each, and no call."""
    connections = [Connection(address, source=f"127.0.0.{2 + number % 8}") for number in range(200)]
    for _ in range(250):
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(f.frame(0xEE, 0, 0, bytes(16_000)))
    stop.wait()
    for connection in connections:
        connection.close()


Client = Callable[[str, int, Stop], None]
CLIENTS: dict[str, Client] = {
    client.__name__.replace("_", "-"): client
    for client in (
        answers_not_taken,
        settings_flood,
        pings,
        rapid_reset,
        readers_whose_socket_is_full,
        readers_without_window,
        uploads_that_never_end,
        tiny_frames,
        behind_a_profile,
        profiles,
        a_frame_in_pieces,
        bounds_that_wait,
        windows_that_nobody_reads,
        idle_connections,
        frames_on_closed_streams,
        messages_that_expand,
        unfinished_messages,
        frames_before_a_call,
    )
}

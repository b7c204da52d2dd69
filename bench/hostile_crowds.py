"""Crowds of 200, 2,000 and 8,000 connections to a pump, each of which does the same harm.

A connection that the pump ends is opened again.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sluice.bench.hostile_clients import Client, Stop, call, headers
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.listener import raise_nofile_limit
from sluice.tidb import pb

SIZES = (200, 2_000, 8_000)
_ADDRESSES = 100
"""The crowd comes from so many loopback addresses, as a pump bounds what one address may hold."""
_TURN_S = 0.01
_OPENED_PER_TURN = 100
_SENT_PER_TURN = 200
_WRITE, _PULL = b"/binlog.Pump/WriteBinlog", b"/binlog.Pump/PullBinlogs"
_OPENING = f.PREFACE + f.settings({})
_GREEDY = f.PREFACE + f.settings({f.SETTING_INITIAL_WINDOW_SIZE: f.MAX_WINDOW})
_CLOSED = f.PREFACE + f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 0})


@dataclass(frozen=True, slots=True)
class Harm:
    """Frames that each connection sends: once, and then over and over."""

    first: bytes
    again: bytes = b""


@dataclass(slots=True)
class _Member:
    sock: socket.socket
    rest: bytes = field(repr=False)

    def send(self, again: bytes) -> None:
        """Send what is left, or the next frames, without waiting. Raises OSError."""
        if not self.rest:
            self.rest = again
        with contextlib.suppress(BlockingIOError):
            self.rest = self.rest[self.sock.send(self.rest) :]


def harms(cluster_id: int) -> dict[str, Harm]:
    """Return the kinds of harm by name."""
    probe = bytes(pb.pump.WriteBinlogReq(clusterID=cluster_id, payload=b"").SerializeToString())
    pull = bytes(pb.pump.PullBinlogReq(clusterID=cluster_id).SerializeToString())
    written = _OPENING + call(1, _WRITE, probe)
    endless = b"\0" + (1 << 30).to_bytes(4, "big")
    return {
        "silent": Harm(b""),
        "settings-only": Harm(_OPENING),
        "endless-headers": Harm(
            _OPENING
            + f.frame(f.HEADERS, 0, 1, b"\0\x7f" + bytes(16_000))
            + f.frame(f.CONTINUATION, 0, 1, bytes(16_000)) * 2
        ),
        "endless-http1": Harm(b"GET /status HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 16_000),
        "frames-without-a-call": Harm(_OPENING, f.frame(0xEE, 0, 0, bytes(16_000)) * 10),
        "endless-message": Harm(
            written + headers(3, _WRITE) + f.frame(f.DATA, 0, 3, endless),
            f.frame(f.DATA, 0, 3, bytes(16_000)) * 8,
        ),
        "closed-streams": Harm(
            written, (headers(1, _WRITE) + f.frame(f.DATA, 0, 1, b"") + f.window_update(1, 1)) * 50
        ),
        "pings": Harm(written, f.frame(f.PING, 0, 0, b"12345678") * 100),
        "settings": Harm(written, f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 0}) * 100),
        "resets": Harm(
            _OPENING,
            b"".join(
                call(stream, _PULL, pull) + f.reset(stream, f.CANCEL) for stream in range(1, 41, 2)
            ),
        ),
        "answers-not-taken": Harm(
            _CLOSED + b"".join(call(stream, _WRITE, probe) for stream in range(1, 201, 2))
        ),
        "binlogs-not-read": Harm(
            _GREEDY
            + f.window_update(0, f.MAX_WINDOW - f.DEFAULT_WINDOW)
            + b"".join(call(stream, _PULL, pull) for stream in range(1, 9, 2))
        ),
    }


def crowd(name: str, count: int, address: str, cluster_id: int, stop: Stop) -> None:
    """Keep `count` connections open that do this harm, until `stop` is set."""
    raise_nofile_limit()
    harm = harms(cluster_id)[name]
    host, port = address.rsplit(":", 1)
    members: list[_Member] = []
    number = turn = 0
    while not stop.is_set():
        for _ in range(min(_OPENED_PER_TURN, count - len(members))):
            number += 1
            with contextlib.suppress(OSError):
                source = (f"127.0.0.{2 + number % _ADDRESSES}", 0)
                sock = socket.create_connection((host, int(port)), 2, source)
                sock.settimeout(0)
                members.append(_Member(sock, harm.first))
        for _ in range(min(_SENT_PER_TURN, len(members))):
            turn = (turn + 1) % len(members)
            if not _goes_on(members[turn], harm.again):
                members.pop(turn).sock.close()
                if not members:
                    break
                turn %= len(members)
        time.sleep(_TURN_S)
    for member in members:
        member.sock.close()


def _goes_on(member: _Member, again: bytes) -> bool:
    """Send; return whether the pump has left the connection open.

    What has nothing more to send takes no answer, either.
    """
    try:
        member.send(again)
        return bool(member.sock.recv(1 << 16, 0 if again else socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _named() -> dict[str, Client]:
    kinds: dict[str, Callable[..., None]] = {
        f"{count}-{name}": partial(crowd, name, count) for name in harms(0) for count in SIZES
    }
    return dict(kinds)


CROWDS: dict[str, Client] = _named()
"""Clients by name, such as `2000-silent`."""

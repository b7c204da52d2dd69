"""Ports for the servers of tests.

They lie below those from which the system's connections begin, and below those of a stack
(`sluice.devstack.state`): otherwise a connection of another test takes one between the moment it
is chosen and the moment its server listens. Each worker of pytest has its own, and gives one out
again only after all others.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import socket
from collections.abc import Iterator

_FIRST, _END, _WORKERS = 11_000, 21_000, 10


@functools.cache
def _candidates() -> Iterator[int]:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw9").removeprefix("gw")
    each = (_END - _FIRST) // _WORKERS
    first = _FIRST + int(worker) % _WORKERS * each
    own = range(first, first + each)
    begin = random.SystemRandom().randrange(len(own))
    return itertools.cycle([*own[begin:], *own[:begin]])


def free_port() -> int:
    """Return a loopback port at which nobody listens."""
    while True:
        port = next(_candidates())
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def free_ports(count: int) -> list[int]:
    """Return so many of them, each another."""
    return [free_port() for _ in range(count)]


def free_port_row(count: int) -> int:
    """Return the first of so many ports in a row, none of which is given out again soon."""
    row: list[int] = []
    while len(row) < count:
        port = free_port()
        row = [*row, port] if row and port == row[-1] + 1 else [port]
    return row[0]

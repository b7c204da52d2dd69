"""The spec of a worker process."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import sys
from dataclasses import dataclass

from sluice.etl.settings import Settings
from sluice.etl.spark.shipping import fingerprint

LAND = "land"
SHUTDOWN_GRACE_S = 300.0
"""Time allowed for in-flight work to finish after a stop request."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The work of a worker process: landing or applying, with these settings and the run's mode.

    A task reattaches to a running worker only if its spec is equal.
    """

    what: str
    """``land`` or ``apply``."""
    settings: Settings
    until_ts: int | None = None
    """Applying is over when the checkpoint is exactly here."""


def socket_address(spec: WorkerSpec) -> bytes:
    """Return the socket address of this pipeline's worker, on this host and for this user.

    It is a name of Linux's, no file.
    """
    relay = spec.settings.relay
    name = "\n".join((spec.what, relay.url, relay.pipeline, spec.settings.name))
    return b"\0sluice-%d-%s" % (
        os.getuid(),
        hashlib.sha256(name.encode()).hexdigest()[:32].encode(),
    )


def peer_pid(end: socket.socket) -> int | None:
    """Return the process at the other end, None if it is another user's, or in another container.

    Any process in the network namespace may take a name.
    """
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid if uid == os.getuid() and pid > 0 else None


def code_fingerprint() -> str:
    """Return a fingerprint of this installation."""
    return f"{sys.executable} {fingerprint()}"

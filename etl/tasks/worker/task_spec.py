"""What a resident is to do."""

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
"""What is under way may take so long to end."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """To land, or to apply, as these settings say: with the mode of the run.

    A task takes a resident up that has the same.
    """

    what: str
    """``land`` or ``apply``."""
    settings: Settings
    until_ts: int | None = None
    """Applying is over when the checkpoint is exactly here."""


def socket_address(wish: WorkerSpec) -> bytes:
    """Where the resident of this pipeline listens, on this host and for this user: a name of
    Linux's, no file.
    """
    relay = wish.settings.relay
    told = "\n".join((wish.what, relay.url, relay.pipeline, wish.settings.name))
    return b"\0sluice-%d-%s" % (
        os.getuid(),
        hashlib.sha256(told.encode()).hexdigest()[:32].encode(),
    )


def peer_pid(end: socket.socket) -> int | None:
    """The process at the other end, None if it is another user's, or in another container: anybody
    who shares the network may take a name.
    """
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid if uid == os.getuid() and pid > 0 else None


def code_fingerprint() -> str:
    """What tells one installation from another."""
    return f"{sys.executable} {fingerprint()}"

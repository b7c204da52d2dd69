"""The session of a job: its role, what it works on, and the lease of one among several."""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import socket
import tempfile
from pathlib import Path
from typing import NamedTuple

from sluice.etl.settings import Spark

__all__ = ["BATCH", "SessionLease", "SessionTarget"]

BATCH = "batch"
"""The role of work that any number of processes do side by side.

Each has a session with a number of its own, see `SessionLease`.
"""


class SessionTarget(NamedTuple):
    """A session on a Spark Connect server."""

    server: Spark
    role: str
    """The role of the session: "land", "apply", `BATCH`.

    Two processes of a role other than `BATCH` would end each other's jobs.
    """
    url: str
    """URL of the relay log, or the archive, that it works on: another one has another session."""
    also: tuple[str, ...] = ()
    """Other URLs at which its workers read or write."""


class SessionLease:
    """The least number that no other lease on this host has, until `release` or the process's end.

    So sessions for batch work are as many as were ever in use at a time, and their Python workers
    stay warm. Spark keeps a Python daemon on each executor for each session that ever ran there,
    also of those that were closed (SPARK-54055).
    """

    def __init__(self) -> None:
        self.role = f"{BATCH} {secrets.token_hex(6)}"
        """The role with the number; where no file can be locked, one that is used once."""
        self._file = -1
        folder = Path(tempfile.gettempdir(), f"sluice-sessions-{os.getuid()}")
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            for number in itertools.count():
                if self._take(folder / f"{number}.lock"):
                    self.role = f"{BATCH} {socket.gethostname()} {os.getuid()} {number}"
                    return
        except OSError:
            return

    def _take(self, path: Path) -> bool:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # The kernel gives it back when the process ends, however it does.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError:
            os.close(file)
            raise
        self._file = file
        return True

    def release(self) -> None:
        """Return the number to the pool."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

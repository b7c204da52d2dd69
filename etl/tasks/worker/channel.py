"""Messages between a task and its worker process: tuples, pickled, over a socket of this user's."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from typing import Any

# from the task
# the installation's fingerprint, the pickled WorkerSpec, Airflow's connections that it needs
SPEC = "wish"
BEGIN = "begin"
DETACH = "leave"  # the run is over: go on until the next one's task is there
END = "end"  # in good order
# from the worker
READY = "ready"  # everything is imported
SPEC_MATCHES = "same"  # whether it does what is wished
LOG = "log"
PROGRESS = "got on"
ALIVE = "alive"  # every few seconds, whatever its work does
FINISHED = "over"  # with what was done since it was taken up: it was left, or has ended
FAILED = "failed"

_LENGTH = struct.Struct("!I")


class MessageChannel:
    """One end. Raises OSError when the other one is gone."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._lock = threading.Lock()

    def send(self, kind: str, *fields: Any) -> None:
        """Send a message from any thread; waits while the other end doesn't read."""
        data = pickle.dumps((kind, *fields))
        with self._lock:
            self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> tuple[Any, ...]:
        """Return the next message; waits for it. Raises ConnectionResetError at the end."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        message: tuple[Any, ...] = pickle.loads(self._read(length))  # noqa: S301 see `process_at`
        return message

    def close(self) -> None:
        """Close the connection, which the other end notices."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            if not more:
                raise ConnectionResetError("the other end is gone")
            found += more
        return bytes(found)

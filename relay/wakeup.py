"""Wake up appliers on the same host when a window lands, so they need not poll.

A process that waits has a Unix datagram socket in a folder of this user's, one folder a relay log.
A process that has landed a window sends a byte to each. No correctness rests on it: on another
host, or as another user, a process isn't woken, and polls.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import select
import socket
import stat
import tempfile
import time
import zlib
from pathlib import Path

__all__ = ["WakeupSocket", "notify"]

_MAX_WAITERS = 64  # processes that wait at a time
_numbers = itertools.count()


class WakeupSocket:
    """Wait for `notify`. One thread waits; others may `wake` it."""

    def __init__(self, url: str) -> None:
        """Create the wakeup socket; `url`: the relay log's."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0)
        self._own_pair, self._wake = socket.socketpair()
        folder = _folder_of(url, _socket_home(tempfile.gettempdir()))
        self._path = folder / f"{os.getpid()}-{next(_numbers)}" if folder is not None else None
        try:
            if folder is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._socket.bind(str(self._path))
        except OSError:  # such as a path that is too long: then nothing wakes it up
            self._path = None
        self._is_reliable = False
        self._is_notified = False

    @property
    def is_reliable(self) -> bool:
        """Return whether it rang for what was found the last time."""
        return self._is_reliable

    def found(self) -> None:
        """Record that there was something, whether a datagram came or not."""
        self._is_reliable, self._is_notified = self._is_notified, False

    def wait(self, seconds: float) -> None:
        """Wait for a wakeup, at most `seconds`."""
        looking = select.poll()  # select takes no descriptor above 1,023
        for each in (self._socket, self._own_pair):
            looking.register(each, select.POLLIN)
        if any(at == self._socket.fileno() for at, _ in looking.poll(seconds * 1000)):
            self._is_notified = True
            with contextlib.suppress(OSError):
                while self._socket.recv(16):
                    pass

    def wake(self) -> None:
        """End `wait` now, in every thread."""
        with contextlib.suppress(OSError):
            self._wake.send(b"!")

    def close(self) -> None:
        """Close the socket, after the last wait."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others wait, too
                self._path.parent.rmdir()
        for each in (self._socket, self._own_pair, self._wake):
            each.close()


def notify(url: str) -> None:
    """Wake up every process that waits for the relay log at `url`. Never raises."""
    folder = _folder_of(url, _cached_home(int(time.monotonic()), tempfile.gettempdir()))
    try:
        waiting = list(folder.iterdir()) if folder is not None else []
    except OSError:
        return
    for path in waiting[:_MAX_WAITERS]:
        _notify_socket(path)


def _notify_socket(path: Path) -> None:
    try:
        _sender().sendto(b"!", str(path))
    except ConnectionRefusedError:  # the process is gone
        with contextlib.suppress(OSError):
            path.unlink()
    except OSError:
        pass


@functools.cache
def _sender() -> socket.socket:
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.settimeout(0)
    return sender


def _folder_of(url: str, home: Path | None) -> Path | None:
    """Return the folder of a relay log's sockets."""
    return home / f"{zlib.crc32(url.encode()):08x}" if home is not None else None


def _socket_home(temporary: str) -> Path | None:
    """Return the folder of the sockets; None if another user could have made it."""
    home = Path(temporary) / f"sluice-{os.getuid()}"
    with contextlib.suppress(OSError):
        home.mkdir(mode=0o700, exist_ok=True)
        found = home.lstat()
        if (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.getuid()
            and not found.st_mode & 0o077
        ):
            return home
    return None


@functools.lru_cache(1)
def _cached_home(_second: int, temporary: str) -> Path | None:
    """Cache `_socket_home` for a second, as landing may notify many times a second."""
    return _socket_home(temporary)

"""The C library's heap: few arenas, and what is free goes back to the system.

glibc gives threads heaps of their own, eight a core, and keeps in each what was freed there: with dozens of readers
that is most of a pump's memory. Behind one interpreter lock two are enough. With another C library nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import time

import psutil

_M_ARENA_MAX = -8  # malloc.h
_TRIM_THRESHOLD_BYTES = 150 << 20  # bytes of the process
_TRIM_INTERVAL_S = 2.0


def limit_arenas() -> None:
    """At the process's start."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


class MallocTrimmer:
    """`now_and_then` from a thread that has nothing else to do."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._due = time.monotonic() + _TRIM_INTERVAL_S

    def now_and_then(self) -> None:
        """Give back what is free, if the process is large and it is time."""
        if time.monotonic() < self._due:
            return
        if self._process.memory_info().rss > _TRIM_THRESHOLD_BYTES:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
        self._due = time.monotonic() + _TRIM_INTERVAL_S

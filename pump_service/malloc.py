"""Limit glibc's malloc arenas, and return free heap to the system.

glibc creates up to eight arenas per core and keeps freed memory in each: with dozens of readers
that is most of a pump's memory. Behind one interpreter lock two arenas are enough. With another C
library nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import time

import psutil

_M_ARENA_MAX = -8  # malloc.h
_TRIM_THRESHOLD_BYTES = 150 << 20  # resident set size
_TRIM_INTERVAL_S = 2.0


def limit_arenas() -> None:
    """Limit malloc to two arenas; call it at process start."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


class MallocTrimmer:
    """Trim the heap now and then; call `maybe_trim` from a thread that is otherwise idle."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._due = time.monotonic() + _TRIM_INTERVAL_S

    def maybe_trim(self) -> None:
        """Return free heap to the system if the process is large and the interval has passed."""
        if time.monotonic() < self._due:
            return
        if self._process.memory_info().rss > _TRIM_THRESHOLD_BYTES:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
        self._due = time.monotonic() + _TRIM_INTERVAL_S

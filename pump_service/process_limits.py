"""Keep the pump's process small: its heap, and the lines of its log."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import time

import psutil

PERIOD_S = 10.0
MAX_LINES = 100
"""Limit per log statement and period: enough to see what happens, a few MB an hour at most."""
MAX_TRACEBACK_LINES = 20
"""Lines that a traceback counts as."""
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


class LogRateLimit(logging.Filter):
    """Filter records of a handler; the first record after a gap reports how many were dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[tuple[str, int], float] = {}
        self._lines: dict[tuple[str, int], int] = {}
        self._dropped: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record.

        The handler's lock is held, or two threads count one line too few.
        """
        place = record.pathname, record.lineno
        now = time.monotonic()
        if now - self._since.get(place, -PERIOD_S) >= PERIOD_S:
            self._since[place] = now
            self._lines[place] = 0
        if self._lines[place] >= MAX_LINES:
            self._dropped[place] = self._dropped.get(place, 0) + 1
            return False
        self._lines[place] += MAX_TRACEBACK_LINES if record.exc_info else 1
        dropped = self._dropped.pop(place, 0)
        if dropped:
            record.msg = f"{record.getMessage()} ({dropped} more of this line were left out)"
            record.args = ()
        return True

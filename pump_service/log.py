"""Limit how many lines each log statement may write, whatever clients cause."""

from __future__ import annotations

import logging
import time

PERIOD_S = 10.0
MAX_LINES = 100
"""Limit per log statement and period: enough to see what happens, a few MB an hour at most."""
MAX_TRACEBACK_LINES = 20
"""Lines that a traceback counts as."""


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

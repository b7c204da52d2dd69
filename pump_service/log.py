"""Bound what any one line of the code writes to the log, whatever clients make it write."""

from __future__ import annotations

import logging
import time

PERIOD_S = 10.0
MAX_LINES = 100
"""of one place in the code in a period: enough to see what happens, a few MB an hour at the most"""
MAX_TRACEBACK_LINES = 20
"""what a traceback counts as"""


class LogRateLimit(logging.Filter):
    """A handler's filter. The first record that passes after others were left out says how many they were."""

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[tuple[str, int], float] = {}
        self._lines: dict[tuple[str, int], int] = {}
        self._left_out: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written. The handler's lock is held or two threads count one line too few."""
        place = record.pathname, record.lineno
        now = time.monotonic()
        if now - self._since.get(place, -PERIOD_S) >= PERIOD_S:
            self._since[place] = now
            self._lines[place] = 0
        if self._lines[place] >= MAX_LINES:
            self._left_out[place] = self._left_out.get(place, 0) + 1
            return False
        self._lines[place] += MAX_TRACEBACK_LINES if record.exc_info else 1
        left_out = self._left_out.pop(place, 0)
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more of this line were left out)"
            record.args = ()
        return True

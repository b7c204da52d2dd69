"""Limit a run of landing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Stop = threading.Event | Callable[[], bool]


class RunLimits:
    """The limits of a run: seconds, a TSO, and a stop signal."""

    def __init__(self, run_seconds: float | None, stop: Stop | None, until_ts: int | None) -> None:
        """Set the limits; None: without that one. `until_ts` is a TSO."""
        self._end = None if run_seconds is None else time.monotonic() + run_seconds
        self._stop = stop.is_set if isinstance(stop, threading.Event) else stop or (lambda: False)
        self._until_ts = until_ts

    def is_reached(self, landed_ts: int | None) -> bool:
        """Return whether everything through `until_ts` is landed.

        `landed_ts` (TSO): None before it is known.
        """
        return self._until_ts is not None and landed_ts is not None and landed_ts >= self._until_ts

    def is_over(self, landed_ts: int | None) -> bool:
        """Return whether the run ends here, see `is_reached`."""
        return (
            self.is_reached(landed_ts)
            or self._stop()
            or (self._end is not None and time.monotonic() >= self._end)
        )

    def wait(self, seconds: float, landed_ts: int | None) -> bool:
        """Sleep, at most until the run ends; return whether it has ended."""
        until = time.monotonic() + seconds
        while not (over := self.is_over(landed_ts)) and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        return over

"""How long a run of landing goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Stop = threading.Event | Callable[[], bool]


class RunLimits:
    """A time, a timestamp, and somebody who may say stop."""

    def __init__(self, run_seconds: float | None, stop: Stop | None, until_ts: int | None) -> None:
        """Each may be None: without that limit. `until_ts` is a TSO."""
        self._end = None if run_seconds is None else time.monotonic() + run_seconds
        self._stop = stop.is_set if isinstance(stop, threading.Event) else stop or (lambda: False)
        self._until_ts = until_ts

    def is_reached(self, landed_ts: int | None) -> bool:
        """Whether all that is to be landed is, when everything through `landed_ts` (TSO) is; None: nobody knows yet."""
        return self._until_ts is not None and landed_ts is not None and landed_ts >= self._until_ts

    def is_over(self, landed_ts: int | None) -> bool:
        """Whether the run ends here, see `is_reached`."""
        return self.is_reached(landed_ts) or self._stop() or (self._end is not None and time.monotonic() >= self._end)

    def wait(self, seconds: float, landed_ts: int | None) -> bool:
        """Sleep, but no longer than the run lasts; whether it is over."""
        until = time.monotonic() + seconds
        while not (over := self.is_over(landed_ts)) and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        return over

"""Let a caller follow a pass, and end it."""

from __future__ import annotations

import time
from collections.abc import Callable

from sluice.etl.history.archive.report import ArchivedSegment

__all__ = ["OnSegment", "Stop", "never_stop", "wait"]

OnSegment = Callable[[ArchivedSegment], None]
"""Called with each segment that the catalogue names."""
Stop = Callable[[], bool]


def never_stop() -> bool:
    """Doesn't stop."""
    return False


def wait(seconds: float, stop: Stop) -> None:
    """Sleep, but no longer than until `stop`."""
    until = time.monotonic() + seconds
    while not stop() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))

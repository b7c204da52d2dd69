"""Waiting between attempts, with an overall deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable


class Deadline:
    """A point in (monotonic) time by which a call, its retries included, must be over."""

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = time.monotonic() + seconds

    def left(self) -> float:
        """Return seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def passed(self) -> bool:
        return time.monotonic() >= self.at


def doubled(failures: int, least: float, most: float) -> float:
    """Return `least` doubled for each of the `failures` so far, `most` at the most."""
    return min(most, least * 2.0 ** min(failures, 30))


class Backoff:
    """Exponential waits with jitter, counted apart for each kind of failure.

    `wait` sleeps between base and cap milliseconds, doubling with every wait of the same kind, and
    never past the deadline. It returns False, at once, when the deadline has passed, or when
    `sleep` returns something true, as the wait of a client's closed-event does: what is closed is
    not tried again.
    """

    def __init__(self, deadline: Deadline, sleep: Callable[[float], object] = time.sleep) -> None:
        self.deadline = deadline
        self._sleep = sleep
        self._waits: dict[str, int] = {}

    def wait(self, kind: str, base_ms: float, cap_ms: float) -> bool:
        left = self.deadline.left()
        if left <= 0:
            return False
        count = self._waits.get(kind, 0)
        self._waits[kind] = count + 1
        full = doubled(count, base_ms, cap_ms)
        return not self._sleep(min(left, random.uniform(max(base_ms, full / 2), full) / 1000))

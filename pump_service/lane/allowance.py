"""How many frames that carry no call a client may send: so many a second, and a burst."""

from __future__ import annotations

import time

_BURST = 100  # frames that may be handled beyond what is allowed
_SHORTEST_WAIT_S = 0.1


class Allowance:
    """`left` goes down with each such frame; below zero the connection isn't read for a while."""

    __slots__ = ("_counted", "_rate", "left")

    def __init__(self, rate: int) -> None:
        """`rate`: frames a second."""
        self._rate = rate
        self.left = float(rate)
        self._counted = time.monotonic()

    @property
    def used_up(self) -> bool:
        """Whether no frame may be handled before it is refilled."""
        return self.left < -_BURST

    def refill(self) -> None:
        """Count the time since the last time."""
        now = time.monotonic()
        self.left = min(self.left + (now - self._counted) * self._rate, float(self._rate))
        self._counted = now

    @property
    def wait_s(self) -> float:
        """Seconds until frames may be handled again."""
        return _SHORTEST_WAIT_S - min(self.left, 0.0) / self._rate

"""Limit the rows and bytes per second that verification reads beside everything else.

The limit that is used up first applies.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sluice.etl.copy.backfill.throttle import RowRateLimiter

__all__ = ["ReadBudget"]

_POLL_INTERVAL_S = 0.2


class ReadBudget:
    """A budget of rows and bytes per second over time; 0 for no limit.

    What isn't used is not saved up.
    """

    def __init__(
        self,
        rows_per_second: int,
        bytes_per_second: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows = RowRateLimiter(rows_per_second, clock)
        self._bytes = RowRateLimiter(bytes_per_second, clock)
        self.rows = 0
        self.bytes = 0

    def used(self, rows: int, size: int) -> None:
        """Charge `rows` rows with `size` bytes that were read."""
        self.rows += rows
        self.bytes += size
        self._rows.used(rows)
        self._bytes.used(size)

    def wait_s(self) -> float:
        """Return how long to wait before the next read, in seconds."""
        return max(self._rows.wait_s(), self._bytes.wait_s())

    def wait(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait until something may be read again, or `stopped()` is true."""
        while (left := self.wait_s()) > 0 and not stopped():
            time.sleep(min(left, _POLL_INTERVAL_S))

"""Limit how much is copied at once, and how fast.

While a chunk is read and written, applying waits for it: a chunk's size follows the time that the
chunks before it took, so that the delay stays short.
"""

from __future__ import annotations

import time
from collections.abc import Callable

TARGET_CHUNK_MS = 200.0
"""Time that reading and writing a chunk's rows should take.

The start of a job and the commit of a transaction come on top.
"""
_INITIAL_ROWS = 1_000
_MIN_ROWS = 100
"""Smaller chunks are hardly faster. Only too many bytes in one make the next smaller still."""
_MAX_ROWS = 50_000
_MAX_GROWTH_FACTOR = 2.0
_MIN_SHRINK_FACTOR = 0.25

_POLL_INTERVAL_S = 0.2


class AdaptiveChunkSize:
    """The number of rows of the next chunk."""

    def __init__(self, rows: int = _INITIAL_ROWS) -> None:
        self.rows = rows

    def took(self, rows: int, milliseconds: float, *, is_selected: bool = False) -> None:
        """Adapt the size to a chunk of that many rows that took that long.

        One that was cut short for another reason shows nothing about the size unless it took long.
        `is_selected`: a condition took these rows of a range, which took its time by its own size.
        """
        if is_selected:
            rows = max(rows, self.rows)
        factor = TARGET_CHUNK_MS / max(milliseconds, 1.0)
        if factor < 1:
            self._set_rows(max(rows * max(factor, _MIN_SHRINK_FACTOR), min(_MIN_ROWS, self.rows)))
        elif rows >= self.rows:
            self._set_rows(rows * min(factor, _MAX_GROWTH_FACTOR))

    def was_late(self) -> None:
        """Shrink after a chunk was given up because its rows came too late.

        What delays a small chunk is not its size, and one of a few rows takes as long as one of
        `_MIN_ROWS`: a busy server would be asked for thousands of them.
        """
        self._set_rows(max(self.rows * _MIN_SHRINK_FACTOR, min(_MIN_ROWS, self.rows)))

    def was_large(self) -> None:
        """Shrink after a chunk was given up because it had too many bytes."""
        self._set_rows(self.rows * _MIN_SHRINK_FACTOR)

    def _set_rows(self, rows: float) -> None:
        self.rows = min(max(int(rows), 1), _MAX_ROWS)


class RowRateLimiter:
    """Limits rows per second; 0 for no limit. What wasn't used is not saved up."""

    def __init__(self, rows_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._due = clock()

    def used(self, rows: int) -> None:
        """Count rows that were read."""
        if self._rate:
            self._due = max(self._due, self._clock()) + rows / self._rate

    def wait_s(self) -> float:
        """Return how long to wait before the next chunk, in seconds."""
        return max(0.0, self._due - self._clock()) if self._rate else 0.0

    def limit(self, rows: int) -> int:
        """Return the rows a chunk may have so that no second has far more than the rate."""
        return min(rows, self._rate) if self._rate else rows


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

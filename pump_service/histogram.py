"""Counting in buckets, cheap enough for the path of every binlog; `/metrics` reads it when it is asked."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

_MAX_DISTINCT = 4096


def doubling_bounds(first: float, count: int) -> list[float]:
    """`count` upper bounds, each twice the one before."""
    return [first * 2**i for i in range(count)]


class Histogram:
    """Observations counted under their upper bounds (inclusive). One thread observes, any thread reads."""

    __slots__ = ("_counts", "_sum", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = list(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` `times` times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self._sum += value * times

    def read(self) -> tuple[list[int], float]:
        """How many are in each bucket (the last has no bound), and the sum of all values."""
        return self._counts[:], self._sum


class SizeHistogram(Histogram):
    """Of whole numbers that repeat much, such as message sizes: a batch of them costs some 40 ns each."""

    __slots__ = ("_recent",)

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__(bounds)
        self._recent: Counter[int] = Counter()

    def observe_all(self, values: Iterable[int]) -> None:
        """Count each value once."""
        self._recent.update(values)
        if len(self._recent) > _MAX_DISTINCT:
            # Replaced before it is counted: a reader in between misses a few for a moment, and never counts one twice.
            recent, self._recent = self._recent, Counter()
            for value, times in recent.items():
                self.observe(value, times)

    def read(self) -> tuple[list[int], float]:
        """As Histogram.read."""
        recent = self._recent.copy()
        counts, total = super().read()
        for value, times in recent.items():
            counts[bisect_left(self.bounds, value)] += times
            total += value * times
        return counts, total

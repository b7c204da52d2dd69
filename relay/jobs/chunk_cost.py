"""Measure what a chunk costs however small it is: a statement, a commit, a look at the job.

A job's tables differ: after a large one, forty small ones take longer than their bytes suggest, and
before it they seem slow.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ChunkCost", "CostOfChunk"]

_MIN_BIN_S = 5.0
"""Steps are added up to spans of 5 s: single ones come in gusts."""
_MIN_NOISE = 0.15
"""Spans differ by 15 % at least from what fits them best, however few there are to see it by."""
_MIN_FREEDOM = 2
"""Two spans more than values to fit, before their scatter means anything."""


class CostOfChunk(NamedTuple):
    """What a chunk costs by itself, and how far off that may be (one standard error), in s."""

    chunk_s: float
    doubt_s: float


class ChunkCost:
    """The cost of a chunk by itself, by least squares over spans of the run. Not thread-safe.

    A span takes `chunks * chunk_s + size * rest_s`. Of the pairs that fit the run as a whole, the
    one is taken that fits the spans best. Chunks of one size tell nothing of it.
    """

    def __init__(self) -> None:
        self._open: tuple[float, int, int] = (0.0, 0, 0)
        self._bins: list[tuple[float, int, int]] = []

    def note(self, seconds: float, chunks: int, size: int) -> None:
        """Add a step."""
        open_s, open_chunks, open_size = self._open
        self._open = (open_s + seconds, open_chunks + chunks, open_size + size)
        if self._open[0] >= _MIN_BIN_S:
            self._bins.append(self._open)
            self._open = (0.0, 0, 0)

    def get(self) -> CostOfChunk:
        """Return what is known. Without a hint the doubt is half of what a chunk took in all."""
        bins = [*self._bins, self._open] if self._open[0] else self._bins
        all_s, all_chunks, all_size = (sum(one[place] for one in bins) for place in range(3))
        if not all_size or not all_chunks:
            return CostOfChunk(0.0, 0.0)
        unknown = CostOfChunk(0.0, all_s / all_chunks / 2)
        points = [
            (chunks - size * all_chunks / all_size, seconds - size * all_s / all_size)
            for seconds, chunks, size in bins
        ]
        spread = sum(more * more for more, _ in points)
        freedom = len(points) - 2
        if freedom < _MIN_FREEDOM or not spread:
            return unknown
        chunk_s = sum(more * rest_s for more, rest_s in points) / spread
        noise = sum((rest_s - chunk_s * more) ** 2 for more, rest_s in points) / freedom
        doubt_s = (max(noise, (_MIN_NOISE * all_s / len(points)) ** 2) / spread) ** 0.5
        if doubt_s >= unknown.doubt_s:
            return unknown
        return CostOfChunk(min(max(0.0, chunk_s), all_s / all_chunks), doubt_s)

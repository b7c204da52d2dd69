"""Measure how fast a process of a job works, from what it has done at each heartbeat."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from sluice.relay.jobs.progress import JobCounts

__all__ = ["Pace"]

_WINDOW_S, _MIN_STEPS = 20.0, 5
"""The pace is that of the last 20 s, of the last 5 steps if those took longer.

A slow beginning is soon forgotten so. Chunks of some seconds, which come in gusts, are averaged.
"""
_MIN_STALL_S, _STALL_GAPS = 20.0, 4.0
"""Nothing was done for so long, and for 4 times the time between two steps: the job waits.

A wait is no part of the pace. What the rest will take is counted without it.
"""


class _Step(NamedTuple):
    """What was done at `at_s`, by a monotonic clock."""

    at_s: float
    done: JobCounts


class Pace:
    """The pace of one process. Not for several threads."""

    def __init__(self) -> None:
        self._start = _Step(0.0, JobCounts())
        self._steps: deque[_Step] = deque()

    def note(self, now_s: float, done: JobCounts) -> tuple[float, float]:
        """Note what is done in all; return rows a second and bytes a second, 0 while it waits.

        Connecting and planning, before anything is done, are no part of the pace.
        """
        if done == JobCounts():
            self._start = _Step(now_s, done)
            self._steps.clear()
            return 0.0, 0.0
        if not self._steps or done != self._steps[-1].done:
            self._leave_out_wait(now_s)
            self._steps.append(_Step(now_s, done))
            self._forget(now_s)
        elif self._waits(now_s):
            return 0.0, 0.0
        return self._rates(now_s)

    def _gap_s(self) -> float | None:
        """Return the mean time between two steps, None while there are fewer than three."""
        if len(self._steps) < 3:
            return None
        return (self._steps[-1].at_s - self._steps[0].at_s) / (len(self._steps) - 1)

    def _waits(self, now_s: float) -> bool:
        gap_s = self._gap_s()
        since_s = now_s - self._steps[-1].at_s if self._steps else 0.0
        return gap_s is not None and since_s > max(_MIN_STALL_S, _STALL_GAPS * gap_s)

    def _leave_out_wait(self, now_s: float) -> None:
        gap_s = self._gap_s()
        if gap_s is not None and self._waits(now_s):
            wait_s = now_s - self._steps[-1].at_s - gap_s
            self._steps = deque(_Step(step.at_s + wait_s, step.done) for step in self._steps)

    def _forget(self, now_s: float) -> None:
        while len(self._steps) > _MIN_STEPS and now_s - self._steps[1].at_s >= _WINDOW_S:
            self._steps.popleft()

    def _rates(self, now_s: float) -> tuple[float, float]:
        steps = list(self._steps)
        if len(steps) < 3:  # the first chunk began about when nothing was done yet
            steps = [self._start, *steps]
            if len(steps) == 2:
                steps[1] = _Step(max(now_s, steps[0].at_s + 1e-3), steps[1].done)
        return (
            _slope([(step.at_s, step.done.rows) for step in steps]),
            _slope([(step.at_s, step.done.bytes) for step in steps]),
        )


def _slope(points: list[tuple[float, int]]) -> float:
    """Return the slope of the straight line that fits the points best."""
    count = len(points)
    mean_s, mean = sum(at_s for at_s, _ in points) / count, sum(it for _, it in points) / count
    spread = sum((at_s - mean_s) ** 2 for at_s, _ in points)
    covered = sum((at_s - mean_s) * (it - mean) for at_s, it in points)
    return max(0.0, covered / spread) if spread else 0.0

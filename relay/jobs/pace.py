"""Measure how fast a process of a job works, from what it has done at each heartbeat."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from sluice.relay.jobs.chunk_cost import ChunkCost
from sluice.relay.jobs.progress import JobCounts, JobPace

__all__ = ["Pace"]

_WINDOW_S, _MIN_STEPS = 20.0, 5
"""The pace is that of the last 20 s, of the last 5 steps if those took longer.

A slow beginning is soon forgotten so. Chunks of some seconds, which come in gusts, are averaged.
"""
_MIN_STALL_S, _STALL_GAPS = 20.0, 4.0
"""Nothing was done for so long, and for 4 times what a step takes: the job waits.

A wait is no part of the pace. What the rest will take is counted without it.
"""


class _Step(NamedTuple):
    """What was done at `at_s`, by a monotonic clock that stands during waits."""

    at_s: float
    done: JobCounts


class Pace:
    """The pace of one process. Not for several threads."""

    def __init__(self) -> None:
        self._start = _Step(0.0, JobCounts())
        self._steps: deque[_Step] = deque()
        self._waited_s = 0.0
        self._cost = ChunkCost()
        self._expected = 0

    def expect(self, work: int) -> None:
        """Announce the work of the next step, if it isn't like the ones before.

        While it runs, `note` counts its time as passed, up to what it takes at the present pace.
        """
        self._expected = work

    def note(self, now_s: float, done: JobCounts) -> JobPace:
        """Note what is done in all; return the pace, 0 while the process waits.

        Connecting and planning, before anything is done, are no part of the pace.
        """
        now_s -= self._waited_s
        if done == JobCounts():
            self._start = _Step(now_s, done)
            self._steps.clear()
            return JobPace()
        if not self._steps or done != self._steps[-1].done:
            now_s = self._leave_out_wait(now_s, done.work)
            self._note_cost(now_s, done)
            self._steps.append(_Step(now_s, done))
            self._forget(now_s)
            self._expected = 0
        elif self._waits(now_s, self._expected):
            return JobPace()
        return self._pace(now_s)

    def _note_cost(self, now_s: float, done: JobCounts) -> None:
        at_s, before = self._steps[-1] if self._steps else self._start
        if done.extra == before.extra:
            self._cost.note(
                now_s - at_s,
                done.chunks - before.chunks,
                done.bytes_of_plan - before.bytes_of_plan,
            )

    def _gap_s(self, work: int = 0) -> float | None:
        """Return how long a step takes, or one of so much work if that is longer.

        None while there are fewer than three.
        """
        if len(self._steps) < 3:
            return None
        span_s = self._steps[-1].at_s - self._steps[0].at_s
        worked = self._steps[-1].done.work - self._steps[0].done.work
        mean_s = span_s / (len(self._steps) - 1)
        return max(mean_s, work * span_s / worked) if worked > 0 else mean_s

    def _waits(self, now_s: float, work: int) -> bool:
        gap_s = self._gap_s(work)
        since_s = now_s - self._steps[-1].at_s if self._steps else 0.0
        return gap_s is not None and since_s > max(_MIN_STALL_S, _STALL_GAPS * gap_s)

    def _leave_out_wait(self, now_s: float, work: int) -> float:
        """Let the clock stand for a wait that has ended with so much done; return what it shows.

        A chunk that is larger than the ones before takes longer, and is no wait.
        """
        step = work - self._steps[-1].done.work if self._steps else 0
        gap_s = self._gap_s(step)
        if gap_s is None or not self._waits(now_s, step):
            return now_s
        at_s = self._steps[-1].at_s + gap_s
        self._waited_s += now_s - at_s
        return at_s

    def _forget(self, now_s: float) -> None:
        while len(self._steps) > _MIN_STEPS and now_s - self._steps[1].at_s >= _WINDOW_S:
            self._steps.popleft()

    def _pace(self, now_s: float) -> JobPace:
        steps = list(self._steps)
        if len(steps) < 3:  # the first chunk began about when nothing was done yet
            steps = [self._start, *steps]
            if len(steps) == 2:
                steps[1] = _Step(max(now_s, steps[0].at_s + 1e-3), steps[1].done)
        work_per_s = _slope([(step.at_s, step.done.work) for step in steps])
        first, last = steps[0].done, steps[-1].done
        cost = self._cost.get()
        first, last = steps[0].done, steps[-1].done
        # in the recent steps it can't have been more than what they took
        chunk_s = min(cost.chunk_s, _price_s(first, last, work_per_s))
        return JobPace(
            _slope([(step.at_s, step.done.rows) for step in steps]),
            _slope([(step.at_s, step.done.bytes) for step in steps]),
            work_per_s,
            chunk_s,
            cost.doubt_s,
            _rest_s(first, last, work_per_s, chunk_s),
            now_s - steps[-1].at_s,
            self._gap_s(self._expected) or 0.0,
        )


def _price_s(first: JobCounts, last: JobCounts, work_per_s: float) -> float:
    """Return what a chunk took in all, in s."""
    chunks = last.chunks - first.chunks
    return (last.work - first.work) / work_per_s / chunks if chunks and work_per_s else math.inf


def _rest_s(first: JobCounts, last: JobCounts, work_per_s: float, chunk_s: float) -> float:
    """Return what the work takes besides the cost of its chunks, in s per byte of work."""
    work = last.work - first.work
    if not work_per_s or not work:
        return 0.0
    return max(0.0, 1 / work_per_s - chunk_s * (last.chunks - first.chunks) / work)


def _slope(points: list[tuple[float, int]]) -> float:
    """Return the slope of the straight line that fits the points best."""
    count = len(points)
    mean_s, mean = sum(at_s for at_s, _ in points) / count, sum(it for _, it in points) / count
    spread = sum((at_s - mean_s) ** 2 for at_s, _ in points)
    covered = sum((at_s - mean_s) * (it - mean) for at_s, it in points)
    return max(0.0, covered / spread) if spread else 0.0

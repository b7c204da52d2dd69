"""Reconstruct a job's past from its files: its states, and what was done by when.

Nothing is written for it. Each process writes its progress in the place of its earlier one, so what
was done is known where a run began and where each of its processes ended, or stands now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sluice.relay.jobs.job import Job
from sluice.relay.jobs.progress import JobCounts, JobProgress
from sluice.relay.jobs.state_log import ACTIVE_STATES, DONE, INTERRUPTED, PLANNED, StateEntry

__all__ = ["JobTimeline", "ProgressPoint", "StateSpan", "job_timeline"]

_MAX_ENTRIES = 200
_MAX_RUNS = 20
"""Runs whose progress is read: each has files as large as the job has tables."""


@dataclass(frozen=True, slots=True)
class StateSpan:
    """A time in one state, Unix ms; `to_ms` is None while it lasts."""

    state: str
    from_ms: int
    to_ms: int | None


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """What was done by `at_ms` (Unix ms); `percent` is None where the total isn't known."""

    at_ms: int
    done: JobCounts
    percent: int | None


@dataclass(frozen=True, slots=True)
class JobTimeline:
    """A job's past, everything ascending.

    `entries`: its states as they were written; `spans`: the same as times, with those in which the
    process had died and no other had taken the job. Of a job with very many entries both are of the
    newest only, and of one with many runs `points` are.
    """

    entries: tuple[StateEntry, ...]
    spans: tuple[StateSpan, ...]
    points: tuple[ProgressPoint, ...]


def job_timeline(job: Job) -> JobTimeline:
    """Return a job's past. Raises RelayCorruptError, OSError."""
    entries = job.files.history.versions(_MAX_ENTRIES)
    if len(entries) < _MAX_ENTRIES:
        entries.insert(0, StateEntry(PLANNED, job.spec.by, job.spec.made_ms))
    newest = entries[-1]
    begun = {entry.run: entry.made_ms for entry in reversed(entries) if entry.run}
    runs = [*sorted(begun.items())[-_MAX_RUNS:], (0, newest.made_ms)]
    points = [
        point
        for (run, from_ms), (following, to_ms) in pairwise(runs)
        for point in _points(
            job, run, from_ms, None if not following and newest.state in ACTIVE_STATES else to_ms
        )
    ]
    if newest.state == DONE and points:
        points.append(replace(points[-1], at_ms=newest.made_ms, percent=100))

    def last_sign_ms(run: int) -> int:
        return max((member.noted_ms for member in job.files.members(run)), default=0)

    is_dead = job.status().state == INTERRUPTED
    return JobTimeline(
        tuple(entries), tuple(_spans(entries, last_sign_ms, is_dead=is_dead)), tuple(points)
    )


def _spans(
    entries: Sequence[StateEntry], last_sign_ms: Callable[[int], int], *, is_dead: bool
) -> Iterator[StateSpan]:
    """Yield the times in each state.

    `last_sign_ms`: when a process of a run wrote its last heartbeat; `is_dead`: the newest run's
    process has died.
    """
    for entry, following in pairwise([*entries, None]):
        assert entry is not None
        end = None if following is None else following.made_ms
        was_taken = following is not None and following.run != entry.run
        if entry.state in ACTIVE_STATES and (was_taken or (is_dead and following is None)):
            died = max(entry.made_ms, last_sign_ms(entry.run))
            died = died if end is None else min(died, end)
            yield StateSpan(entry.state, entry.made_ms, died)
            yield StateSpan(INTERRUPTED, died, end)
        else:
            yield StateSpan(entry.state, entry.made_ms, end)


def _points(job: Job, run: int, from_ms: int, to_ms: int | None) -> Iterator[ProgressPoint]:
    """Yield what was done when a run began, and when each of its processes wrote last.

    `to_ms`: when the run was over, None if it isn't. A process writes once more after that.
    """
    totals = JobProgress(job.files.totals(run)).in_all
    at_ms, done = from_ms, totals.done
    members = sorted(job.files.members(run), key=lambda member: member.noted_ms)
    for noted_ms, more in [
        (from_ms, JobCounts()),
        *((member.noted_ms, sum(member.tables.values(), JobCounts())) for member in members),
    ]:
        at_ms, done = max(at_ms, noted_ms if to_ms is None else min(noted_ms, to_ms)), done + more
        percent = replace(totals, done=done).percent
        yield ProgressPoint(at_ms, done, None if percent is None else min(99, percent))

"""From a minute on the time left is within 30 % of what a job then takes at a steady rate."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import pytest

from sluice.relay.jobs import JobProgress, Runner, TableProgress
from sluice.relay.jobs.pace import Pace
from sluice.relay.jobs.progress import JobCounts, JobPace, WorkerProgress

MB = 10**6
Chunk = tuple[float, JobCounts]
"""What a chunk takes, in s, and what it has."""


def chunks(count: int, size: int, rows: int, seconds: float, of_plan: float = 1.0) -> list[Chunk]:
    planned = round(size * of_plan) if of_plan != 1.0 else 0
    return [(seconds, JobCounts(rows, size, 1, planned))] * count


def finished(work: list[Chunk], threads: int, stalls: list[tuple[float, float]]) -> Iterator[Chunk]:
    """When each chunk is done. During a stall (from, for so many s) nothing goes on."""
    free = [3.0] * threads  # connecting and planning
    for seconds, done in work:
        at = heapq.heappop(free) + seconds
        heapq.heappush(free, at)
        yield at + sum(length for since, length in stalls if at > since), done


def judged(
    work: list[Chunk],
    threads: int = 1,
    stalls: list[tuple[float, float]] | None = None,
    before: JobCounts = JobCounts(),
    since: int = 60,
) -> list[tuple[int, float | None, float]]:
    """Each second from `since` on, but in stalls, with the time left as shown, and as it then was.

    `before`: what an earlier run of the job did.
    """
    stalls = stalls or []
    ends = sorted(finished(work, threads, stalls), key=lambda one: one[0])
    in_all = before.bytes_of_plan + sum(done.bytes_of_plan for _, done in work)
    chunks_in_all = before.chunks + sum(done.chunks for _, done in work)
    extra = sum(done.extra for _, done in work)
    totals = {"d.a": TableProgress(before, in_all, chunks_in_all, extra_in_all=extra)}
    pace, done, found = Pace(), JobCounts(), []
    for second in range(int(ends[-1][0])):
        while ends and ends[0][0] <= second:
            done += ends.pop(0)[1]
        if ends and ends[0][1].extra:
            pace.expect(ends[0][1].extra)
        found_pace = pace.note(float(second), done)
        member = WorkerProgress(Runner("a model"), tables={"d.a": done}, **found_pace._asdict())
        left_s = JobProgress.from_members(totals, [member]).left_s
        to_come = sum(length for since, length in stalls if since + length > second)
        if second >= since and not any(since < second <= since + it for since, it in stalls):
            found.append((second, left_s, ends[-1][0] - second - to_come if ends else 0.0))
    return found


def wide_and_narrow() -> list[Chunk]:
    """Tables of 4 kB and of 40 B a row, in chunks of 10,000 rows, at 4 MB/s, mixed."""
    wide, narrow = chunks(1, 40 * MB, 10_000, 10.0), chunks(100, 400_000, 10_000, 0.1)
    return [chunk for _ in range(15) for chunk in wide + narrow]


JOBS: dict[str, Callable[[], list[tuple[int, float | None, float]]]] = {
    "steady": lambda: judged(chunks(3000, 4 * MB, 1000, 0.1)),
    "large chunks": lambda: judged(chunks(40, 64 * MB, 10_000, 9.0)),
    "gusts of eight": lambda: judged(chunks(240, 64 * MB, 10_000, 9.0), threads=8),
    "a slow beginning": lambda: judged(chunks(10, MB, 1000, 3.5) + chunks(1200, MB, 1000, 0.2)),
    "a wait of 90 s": lambda: judged(chunks(1500, MB, 1000, 0.2), stalls=[(100.0, 90.0)]),
    "a wait of 90 s of large chunks": lambda: judged(
        chunks(40, 64 * MB, 10_000, 9.0), stalls=[(100.0, 90.0)]
    ),
    "wide and narrow tables": lambda: judged(wide_and_narrow()),
    "three times slower from 100 s on, a minute later": lambda: judged(
        chunks(500, 4 * MB, 1000, 0.2) + chunks(500, 4 * MB, 1000, 0.6), since=163
    ),
    "paused, and resumed by a slower process": lambda: judged(
        chunks(600, 4 * MB, 1000, 0.4), before=JobCounts(900_000, 900 * 4 * MB, 900)
    ),
    "half as much again as was planned": lambda: judged(
        chunks(1500, 3 * MB, 1000, 0.2, of_plan=2 / 3)
    ),
}


@pytest.mark.parametrize("job", JOBS)
def test_the_time_left_is_right_within_30_percent(job):
    found = JOBS[job]()
    assert len(found) > 100
    shown = [(second, left_s, truth) for second, left_s, truth in found if left_s is not None]
    assert len(shown) > 0.95 * len(found)
    # the last chunk counts when it is whole, and a beat is a second
    wrong = [one for one in shown if abs(one[1] - one[2]) > 0.3 * one[2] + 10.0]
    assert wrong == []


SMALL = chunks(60, 400_000, 2_000, 0.3)
LARGE = chunks(20, 32 * MB, 160_000, 8.3)
MIXED = chunks(20, 4 * MB, 20_000, 1.2)
"""As a chunk takes 0.2 s, and each MB of it 0.25 s more."""
UNEVEN: dict[str, list[Chunk]] = {
    "small tables, then large ones": SMALL * 4 + MIXED + LARGE,
    "a large table, then small ones": LARGE + MIXED + SMALL * 8,
    "many small chunks, then a few large ones": chunks(1000, MB, 1000, 0.1)
    + chunks(30, 64 * MB, 64_000, 6.4),
    "large and small by turns": (SMALL[:20] + LARGE[:2] + MIXED[:5]) * 12,
}


@pytest.mark.parametrize("job", UNEVEN)
@pytest.mark.parametrize("threads", [1, 2])
def test_tables_of_other_sizes_show_the_time_left_once_it_can_be_known(
    job: str, threads: int
) -> None:
    found = judged(UNEVEN[job] * threads, threads)
    shown = [(second, left_s, truth) for second, left_s, truth in found if left_s is not None]
    wrong = [one for one in shown if abs(one[1] - one[2]) > 0.3 * one[2] + 10.0]
    assert len(wrong) < 0.02 * len(shown), wrong
    assert len(shown) > 0.4 * len(found)


def test_indexes_behind_the_rows_are_in_the_time_left_and_pass_while_they_are_made() -> None:
    indexes = [(60.0, JobCounts(extra=200 * MB)), (36.0, JobCounts(extra=120 * MB))]
    found = judged(chunks(75, 4 * MB, 20_000, 1.2) + indexes)
    wrong = [one for one in found if one[1] is None or abs(one[1] - one[2]) > 0.1 * one[2] + 2]
    assert wrong == []


def test_a_long_step_passes_while_it_runs_and_shows_nothing_when_it_takes_longer() -> None:
    pace, totals = Pace(), {"d.a": TableProgress(JobCounts(), 100 * MB)}

    def left_s(second: int, done: int) -> float | None:
        counts = JobCounts(done, done * MB)
        member = WorkerProgress(
            Runner("a model"), tables={"d.a": counts}, **pace.note(second, counts)._asdict()
        )
        return JobProgress.from_members(totals, [member]).left_s

    for second in range(0, 91, 10):
        left_s(second, second)
    assert left_s(96, 90) == pytest.approx(4.0)
    assert left_s(105, 90) is None


def test_a_job_that_waits_shows_no_time_left_and_goes_on_with_its_pace():
    pace = Pace()
    for second in range(1, 41):
        rates = pace.note(float(second), JobCounts(second * 10, second * MB))
    assert rates[:2] == pytest.approx((10, MB))
    quiet = pace.note(50.0, JobCounts(400, 40 * MB))
    assert quiet[:2] == pytest.approx((10, MB)), "a moment's quiet"
    assert pace.note(100.0, JobCounts(400, 40 * MB)) == JobPace()
    assert pace.note(101.0, JobCounts(410, 41 * MB))[:2] == pytest.approx((10, MB))

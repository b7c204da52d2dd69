"""A job's past as its files have it: states, orders, a process that died, what was done by when."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.relay.errors import RelayCorruptError
from sluice.relay.jobs import (
    CANCELLED,
    DONE,
    FAILED,
    INTERRUPTED,
    PAUSE,
    PAUSED,
    PAUSING,
    PLANNED,
    RUNNING,
    Job,
    JobCounts,
    Jobs,
    Runner,
    TableProgress,
    job_timeline,
)
from sluice.relay.storage import LocalStorage
from tests.relay.jobs.test_jobs import a_job, leave_behind


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "relay", f"file://{tmp_path}/relay")


@pytest.fixture
def job(storage: LocalStorage) -> Job:
    return a_job(Jobs(storage))


def test_a_job_that_nobody_ran_is_planned_until_now(job: Job) -> None:
    past = job_timeline(job)
    assert [(span.state, span.to_ms) for span in past.spans] == [(PLANNED, None)]
    assert (past.spans[0].from_ms, past.entries[0].by) == (job.spec.made_ms, "ann")
    assert past.points == ()


def test_pauses_failures_and_orders_stand_in_their_order_and_the_end_is_100_percent(
    job: Job,
) -> None:
    tables = {"d.a": TableProgress(JobCounts(), 200, 4)}
    with job.run(Runner("the first")) as run:
        run.set_totals(tables)
        run.did("d.a", JobCounts(5, 50, 1))
        job.order(PAUSE, "bob")
        run.look()
        run.end(PAUSED)
    with pytest.raises(OSError), job.run(Runner("the second")) as run:
        run.set_totals({"d.a": TableProgress(JobCounts(5, 50, 1), 200, 4)})
        raise OSError("disk full")
    with job.run(Runner("the third")) as run:
        run.set_totals({"d.a": TableProgress(JobCounts(5, 50, 1), 200, 4)})
        run.did("d.a", JobCounts(10, 100, 2))
        run.end(DONE)
    past = job_timeline(job)
    states = [PLANNED, RUNNING, PAUSING, PAUSED, RUNNING, FAILED, RUNNING, DONE]
    assert [entry.state for entry in past.entries] == [span.state for span in past.spans] == states
    assert past.entries[2].by == "bob" and past.entries[5].message == "disk full"
    for span, following in zip(past.spans, past.spans[1:], strict=False):
        assert span.to_ms == following.from_ms
    assert past.spans[-1].to_ms is None
    shares = [(point.done.rows, point.done.chunks, point.percent) for point in past.points]
    first, second, third = [(0, 0, 0), (5, 1, 25)], [(5, 1, 25)] * 2, [(5, 1, 25), (15, 3, 75)]
    assert shares == [*first, *second, *third, (15, 3, 100)]
    at = [point.at_ms for point in past.points]
    assert at == sorted(at) and at[-1] == past.entries[-1].made_ms


def test_the_time_in_which_a_process_was_dead_is_not_counted_as_running(
    job: Job, tmp_path: Path
) -> None:
    leave_behind(tmp_path / "relay", job.id)
    dead = job_timeline(job)
    assert [span.state for span in dead.spans] == [PLANNED, RUNNING, INTERRUPTED]
    assert dead.spans[-1].to_ms is None
    assert [(point.done.rows, point.percent) for point in dead.points] == [(5, 25), (10, 50)]
    with job.run(Runner("the next"), timeout_s=3600) as run:
        now = job_timeline(job)
        run.end(CANCELLED)
    assert [span.state for span in now.spans] == [PLANNED, RUNNING, INTERRUPTED, RUNNING]
    died = now.spans[2]
    assert died.from_ms == dead.spans[2].from_ms and died.to_ms == now.spans[3].from_ms


def test_what_is_not_known_in_all_has_no_percentage_before_the_end(job: Job) -> None:
    with job.run(Runner("a test")) as run:
        run.did("d.a", JobCounts(3, 30, 1))
        run.end(DONE)
    points = job_timeline(job).points
    assert [(point.done.rows, point.percent) for point in points] == [
        (0, None),
        (3, None),
        (3, 100),
    ]


def test_of_a_job_that_was_taken_again_and_again_the_newest_is_shown(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.relay.jobs.timeline._MAX_ENTRIES", 4)
    monkeypatch.setattr("sluice.relay.jobs.timeline._MAX_RUNS", 1)
    for number in range(3):
        with job.run(Runner(f"run {number}")) as run:
            run.did("d.a", JobCounts(number, 1, 1))
            run.end(PAUSED)
    past = job_timeline(job)
    assert [(entry.state, entry.run) for entry in past.entries] == [
        (RUNNING, 2), (PAUSED, 2), (RUNNING, 3), (PAUSED, 3),
    ]  # fmt: skip
    assert [point.done.rows for point in past.points] == [0, 2]


def test_a_damaged_entry_is_named(job: Job, storage: LocalStorage) -> None:
    with job.run(Runner("a test")) as run:
        run.end(PAUSED)
    storage.replace(f"jobs/{job.id}/state/000000000001.json", b"{")
    with pytest.raises(RelayCorruptError, match=r"state/000000000001\.json"):
        job_timeline(job)

"""A plan on its way to a worker: each of its tasks is unpacked by the worker that does it alone."""

from __future__ import annotations

import pickle

from pyspark import cloudpickle

from sluice.etl.history.as_of.read_tasks import (
    PackedTasks,
    SnapshotRows,
    TimeTravelPlan,
    WindowChanges,
    WindowParts,
)
from sluice.relay import Part


def plan_of(count: int, parts: int) -> TimeTravelPlan:
    windows = tuple(WindowParts((Part(f"windows/{n}.arrow", *[n] * 6),)) for n in range(parts))
    tasks = [WindowChanges(windows, n, n + 1, bytes=n) for n in range(count)]
    return TimeTravelPlan("file:///log", {"kind": "none"}, (), tuple(tasks), frozenset({7}))


def test_a_plan_in_a_worker_is_the_plan_and_may_be_sent_on() -> None:
    plan = plan_of(5, 3)
    there = pickle.loads(cloudpickle.dumps(plan))
    for found in (there, pickle.loads(pickle.dumps(there))):
        assert list(found.tasks) == list(plan.tasks) and len(found.tasks) == 5
        assert list(found.tasks[1:3]) == list(plan.tasks[1:3])
        assert (found.log_url, found.snapshot, found.ignored) == (
            plan.log_url,
            plan.snapshot,
            plan.ignored,
        )


def test_a_worker_unpacks_the_task_that_it_does_and_no_other() -> None:
    task = SnapshotRows(1, {"file": "a"}, 2)
    packed = PackedTasks.pack([task])._packed
    tasks = pickle.loads(pickle.dumps(PackedTasks([b"damaged", packed[0], b"damaged"])))
    assert tasks[1] == task and len(tasks) == 3
    assert not PackedTasks([])


def test_a_plan_takes_less_than_its_tasks() -> None:
    plan = plan_of(20, 500)
    assert 3 * len(pickle.dumps(plan)) < sum(len(pickle.dumps(task)) for task in plan.tasks)

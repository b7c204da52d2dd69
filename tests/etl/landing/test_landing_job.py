"""A landing job's result is that of every range, or an error."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from etl.explode import PumpRange
from etl.landing import _job as _landing_job
from etl.landing._job import LandingJob
from etl.landing.planner import Plan
from etl.spark.errors import SparkError
from etl.spark.judge import Judge


def stats(n: int, transactions: int) -> str:
    return json.dumps(
        {"n": n, "part": None, "transactions": transactions, "ddls": [], "tables": {}, "skipped": {}, "worker_ms": {}}
    )


@pytest.mark.parametrize("answers", [[], [0], [1], [0, 0], [0, 1, 1]])
def test_a_range_without_an_answer_is_no_empty_range(monkeypatch: pytest.MonkeyPatch, answers: list[int]) -> None:
    job = LandingJob.__new__(LandingJob)
    job._judge = Judge()
    job._spark, job._frame = None, type("Frame", (), {"of": lambda self, tasks: tasks})()
    plan = Plan(10, 30, 30, (PumpRange("a", 10, 20), PumpRange("a", 20, 30)), 2, 2, False)

    def collected(answers: list[int]) -> Any:
        return lambda *_: pa.table({"stats": pa.array([stats(n, 1) for n in answers], pa.string())})

    monkeypatch.setattr(_landing_job, "collect", collected([1, 0]))
    assert job.run(plan, "t", 1).transactions == 2
    monkeypatch.setattr(_landing_job, "collect", collected(answers))
    with pytest.raises(SparkError, match="2 ranges") as caught:
        job.run(plan, "t", 1)
    assert caught.value.transient

"""A landing job's result is that of every range, or an error."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from sluice.etl.landing._job import LandingJob
from sluice.etl.landing.extract import PumpRange
from sluice.etl.landing.planner import WindowPlan
from sluice.etl.spark.errors import SparkError


def stats(n: int, transactions: int) -> str:
    return json.dumps(
        {
            "n": n,
            "part": None,
            "transactions": transactions,
            "ddls": [],
            "tables": {},
            "skipped": {},
            "worker_ms": {},
        }
    )


@pytest.mark.parametrize("answers", [[], [0], [1], [0, 0], [0, 1, 1]])
def test_a_range_without_an_answer_is_no_empty_range(answers: list[int]) -> None:
    plan = WindowPlan(10, 30, 30, (PumpRange("a", 10, 20), PumpRange("a", 20, 30)), 2, 2, False)

    def job(answers: list[int]) -> LandingJob:
        return LandingJob(
            lambda *_, **__: pa.table({"stats": [stats(n, 1) for n in answers]}).to_batches()
        )

    assert job([1, 0]).run(plan, "t", 1).transactions == 2
    with pytest.raises(SparkError, match="2 ranges") as caught:
        job(answers).run(plan, "t", 1)
    assert caught.value.transient

"""A call that is too slow for a standing worker is a job the next time, on the same session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.etl.settings import Spark
from sluice.etl.spark import remote_function as function
from sluice.etl.spark import resilient_function as kept
from sluice.etl.spark.errors import SlowWorkerError
from sluice.etl.spark.resilient_function import ResilientFunction
from sluice.etl.spark.session_target import SessionTarget
from sluice.etl.spark.worker_tuning import TEXTS

TASKS = pa.table({"text": ["a"]})


class Slow:
    """In place of a standing worker."""

    def __init__(self, *_: Any) -> None:
        self.calls = 0

    def is_ready(self, max_age_s: float | None = None, core_timeout_s: float | None = None) -> bool:
        return True

    def call(self, tasks: pa.Table, timeout_s: float) -> Iterator[pa.RecordBatch]:
        self.calls += 1
        raise SlowWorkerError(f"it made nothing in {timeout_s} s")
        yield

    def release(self) -> None:
        pass


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ResilientFunction]:
    """Its jobs answer, its standing workers don't; Spark itself isn't there."""
    monkeypatch.setattr(function, "PersistentWorker", Slow)
    monkeypatch.setattr(function.reachability, "check_reachable", lambda _: None)
    monkeypatch.setattr(
        function,
        "TaskFrame",
        lambda *_: type("Frame", (), {"of": staticmethod(lambda tasks: tasks)}),
    )
    monkeypatch.setattr(function, "stream", lambda _, tasks, *__: iter(tasks.to_batches()))
    monkeypatch.setattr(kept.spark_session, "connect", lambda *_: object())
    monkeypatch.setattr(kept.spark_session, "close", lambda _: None)
    found = ResilientFunction(
        SessionTarget(Spark("sc://127.0.0.1:1"), "slow", tmp_path.as_uri()),
        lambda it: it,
        (TEXTS, TEXTS),
    )
    yield found
    found.close()


@pytest.mark.parametrize("alone", [True, False])
def test_a_call_that_a_standing_worker_is_too_slow_for_is_a_job_next_time(
    called: ResilientFunction, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    def ask() -> list[pa.RecordBatch]:
        called.connect(10)
        return list(called(TASKS, 60, alone=alone, is_small=False))

    with pytest.raises(SlowWorkerError) as caught:
        ask()
    assert caught.value.transient
    for _ in range(3):
        assert [batch.column(0).to_pylist() for batch in ask()] == [["a"]]
    monkeypatch.setattr(function, "_JOB_FALLBACK_S", -1.0)
    assert called._function is not None
    called._function._fallback_until = 0.0
    with pytest.raises(SlowWorkerError):
        ask()

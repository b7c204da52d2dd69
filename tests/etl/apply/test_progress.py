"""What applying says in its log: a line every few seconds, not one a window."""

from __future__ import annotations

import json
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.etl.apply import _metrics as _report
from sluice.etl.apply._batch import WindowBatch
from sluice.etl.apply._metrics import ApplyProgressLog, BatchReport, report_of
from sluice.etl.downstream.sinks.sink import SinkResult
from sluice.tidb import tso


def batch(number: int, changes: int = 3, ddls: int = 0) -> BatchReport:
    stages = {"send": 1.5, "commit": 0.25}
    return BatchReport(number, number + 1, 1, 2, changes, changes, ddls, stages, 10.0 + number)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(_report, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_the_lag_of_a_batch_is_by_the_upstreams_clock() -> None:
    behind_ms = -8 * 86_400_000
    hi = tso.compose(time.time_ns() // 1_000_000 + behind_ms - 1_000)
    report = report_of(WindowBatch((), 0, hi), SinkResult(), behind_ms)
    assert 1_000 <= report.lag_ms < 60_000


def said(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return [json.loads(line.removeprefix("applied ")) for line in lines]


def test_batches_of_a_few_seconds_are_one_line_with_their_sums(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice.apply")
    progress = ApplyProgressLog()
    progress.add(batch(0))
    assert [line["batches"] for line in said(caplog)] == [1]
    for number in range(1, 5):
        clock.now += 1.0
        progress.add(batch(number))
    assert said(caplog) == []
    clock.now += 1.0
    progress.maybe_log()
    (line,) = said(caplog)
    assert line == {
        "lo": 1,
        "hi": 5,
        "batches": 4,
        "windows": 4,
        "transactions": 8,
        "changes": 12,
        "rows": 12,
        "ddls": 0,
        "stages_ms": {"send": 6.0, "commit": 1.0},
        "lag_ms": 14.0,
    }
    clock.now += 60.0
    progress.maybe_log()
    assert said(caplog) == []


def test_many_row_changes_are_said_at_once_and_the_rest_at_the_end(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice.apply")
    progress = ApplyProgressLog()
    progress.add(batch(0))
    progress.add(batch(1, changes=20_000))
    progress.add(batch(2, changes=20_000))
    progress.add(batch(3, changes=0))
    progress.add(batch(4, changes=0, ddls=1))
    assert [line["hi"] for line in said(caplog)] == [1, 2, 3]
    progress.maybe_log(last=True)
    assert [(line["hi"], line["ddls"]) for line in said(caplog)] == [(5, 1)]

"""Pumps with damaged records and vanished registry entries never make landing pass a transaction
over.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.etl.landing import _job_queue as _ahead
from tests.judge.harmed_pumps import InProcess, judge


@pytest.mark.ci_cases("[0]", "[1]")
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", range(4))
def test_what_is_landed_of_pumps_that_came_to_harm_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config, number: int
) -> None:
    """Again: --judge-seed SEED."""
    monkeypatch.setattr(_ahead, "ResilientFunction", InProcess)
    seed = pytestconfig.getoption("judge_seed") + number
    problem, story = judge(tmp_path, seed)
    assert not problem, (seed, problem, story)
    assert "landed through" in story

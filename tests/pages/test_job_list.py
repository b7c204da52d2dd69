"""What the page Jobs says of a job's tables."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.pages.job_list import _outcome, _unfinished_rank
from sluice.relay.jobs import JobProgress
from sluice.relay.jobs.progress import JobCounts, TableProgress


def test_a_table_of_which_nobody_knows_how_much_there_is_is_done_when_the_job_is() -> None:
    tables = {
        "d.unknown": TableProgress(),
        "d.half": TableProgress(JobCounts(1, 50, 0), 100),
        "d.whole": TableProgress(JobCounts(9, 0, 3), 0, 3),
    }
    shown = JobProgress(tables).to_json()["tables"]
    assert _unfinished_rank(shown, is_done=False) == 1
    assert _unfinished_rank({"d.unknown": shown["d.unknown"]}, is_done=True) == 1


@pytest.mark.parametrize(
    ("kind", "result", "outcome"),
    [
        ("verify", {"compared": 4, "unequal": []}, "4 tables equal"),
        ("verify", {"compared": 4, "unequal": [{"name": "shop.orders"}]}, "1 table not equal"),
        ("verify", {}, ""),
        ("snapshot", {"compared": 4}, ""),
    ],
)
def test_the_list_says_what_a_verification_found(
    kind: str, result: dict[str, Any], outcome: str
) -> None:
    assert _outcome(kind, result) == outcome

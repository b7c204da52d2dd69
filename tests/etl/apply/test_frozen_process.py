"""A process that stands still (a frozen machine, a long wait) while another one takes over writes
nothing more when it wakes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etl.freezer import Freezer
from tests.etl.freezing import Point, left_open, run_point, steps_of, tell
from tests.etl.mariadb_fixture import MariaDBServer

_POINTS = 4


@pytest.fixture(scope="module")
def freezer() -> Iterator[Freezer]:
    with Freezer() as found:
        yield found


def spread(items: list[int], count: int) -> list[int]:
    return [items[len(items) * n // count] for n in range(count)] if len(items) > count else items


@pytest.mark.ci_cases("[atomic-")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("atomic", "parallel", marks=pytest.mark.slow),
        ("parallel", "parallel"),
        pytest.param("parallel", "atomic", marks=pytest.mark.slow),
    ],
)
def test_wherever_a_process_is_stopped_another_takes_over_at_once_and_the_first_changes_nothing(
    mariadb: MariaDBServer, tmp_path: Path, freezer: Freezer, first: str, second: str
) -> None:
    """Some of the points of `bench/stall_points.py`, which goes through all of them."""
    story = tell(mariadb, tmp_path)
    steps = steps_of(freezer, mariadb, story, tmp_path, first)
    points = [Point(first, second, stop) for stop in spread(list(range(5, len(steps))), _POINTS)]
    outcomes = [run_point(freezer, mariadb, story, tmp_path, point) for point in points]
    assert sum(bool(outcome.at) for outcome in outcomes) >= _POINTS - 1
    assert [outcome for outcome in outcomes if outcome.wrong or outcome.blocked] == []


@pytest.mark.ci_cases("parallel-atomic")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"), [("atomic", "atomic"), ("parallel", "atomic"), ("parallel", "parallel")]
)
def test_a_process_that_is_stopped_while_it_goes_on_from_a_crash_changes_nothing_when_it_wakes(
    mariadb: MariaDBServer, tmp_path: Path, freezer: Freezer, first: str, second: str
) -> None:
    """It has read what was begun, a DDL or a flight, and another one finishes that and goes on."""
    story = tell(mariadb, tmp_path)
    crashes = left_open(steps_of(freezer, mariadb, story, tmp_path, first))
    points = [
        Point(first, second, 15 + 3 * n, crash) for n, crash in enumerate(spread(crashes, _POINTS))
    ]
    outcomes = [run_point(freezer, mariadb, story, tmp_path, point) for point in points]
    assert sum(bool(outcome.at) for outcome in outcomes) >= _POINTS // 2
    assert [outcome for outcome in outcomes if outcome.wrong or outcome.blocked] == []

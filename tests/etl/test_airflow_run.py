"""What an Airflow run tells."""

import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from sluice.etl.tasks.airflow_run import MIN_TASK_S, RunDeadline, run_began_s


def began(seconds_ago):
    return SimpleNamespace(start_date=datetime.fromtimestamp(time.time() - seconds_ago, UTC))


def test_all_tasks_of_a_run_end_at_one_moment_whenever_each_was_started():
    run = began(60)
    first, again = RunDeadline.of(300, run_began_s(run)), RunDeadline.of(300, run_began_s(run))
    assert first == again
    assert first.left_s() == pytest.approx(240, abs=20)


@pytest.mark.parametrize("seconds_ago", [299, 301, 10_000])
def test_a_task_that_was_started_when_its_runs_time_was_over_is_not_useless(seconds_ago):
    assert RunDeadline.of(300, run_began_s(began(seconds_ago))).left_s() == MIN_TASK_S
    assert RunDeadline.of(2, run_began_s(began(seconds_ago))).left_s() == 2


def test_a_clock_behind_the_schedulers_makes_no_run_longer():
    assert RunDeadline.of(300, run_began_s(began(-1_000))).left_s() == 300


@pytest.mark.parametrize("dag_run", [None, SimpleNamespace(start_date=None)])
def test_without_an_airflow_the_run_begins_now(dag_run):
    assert RunDeadline.of(300, run_began_s(dag_run)).left_s() == pytest.approx(300, abs=20)

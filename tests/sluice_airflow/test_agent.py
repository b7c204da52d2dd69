"""A pipeline in an environment of its own does what it would do in Airflow's processes."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from sluice.airflow import SluiceJobOperator, SluiceReached, agent_client
from sluice.airflow.agent_client import AgentError, call, call_kept, call_task
from sluice.etl.settings.pipelines import pipelines
from sluice.relay.jobs import DONE, PAUSED, Jobs
from tests.sluice_airflow.counting_kind import program

AGENT = "tests.sluice_airflow.counting_kind"
MIDNIGHT = "2026-11-22T00:00:00+00:00"


@pytest.fixture
def elsewhere(shop, monkeypatch):
    """The pipeline `shop`, whose calls an agent makes."""
    monkeypatch.setattr(agent_client, "_kept", {})
    answers_by(shop, program(shop.folder))
    yield shop
    for each in agent_client._kept.values():
        each.close()


def answers_by(shop, path):
    file = shop.pipelines / "shop.toml"
    text = file.read_text().partition("[airflow]")[0]
    file.write_text(f'{text}[airflow]\npython = "{path}"\n')


def shop_pipeline():
    return pipelines()["shop"]


def jobs():
    return Jobs.for_pipeline(shop_pipeline().settings.open_relay()).list()


def operator(steps):
    return SluiceJobOperator(
        task_id="check", kind="count", pipeline="shop", form={"tables": [steps]}
    )


class TaskInstance:
    run_id, dag_id = "manual__1", "report"

    def xcom_push(self, key, value):
        pass


def run(steps):
    return operator(steps).execute({"ti": TaskInstance()})


def test_an_operator_runs_its_job_in_the_other_environment_and_its_log_comes_here(
    elsewhere, caplog
):
    with caplog.at_level(logging.INFO):
        assert run("3") == {"steps": 3}
    (job,) = jobs()
    assert job.entry().state == DONE
    assert f"the job {job.id}" in caplog.text


@pytest.mark.quick_cases("False")
@pytest.mark.parametrize("group", [False, True])
def test_a_killed_task_pauses_the_job_of_its_agent(elsewhere, caplog, group):
    """Airflow 3.3 signals the task's whole process group, former ones only the task."""

    def kill():
        while "at work" not in caplog.text:
            time.sleep(0.05)
        for child in psutil.Process().children() if group else []:
            if AGENT in child.cmdline():  # servers of other tests are children, too
                child.terminate()
        os.kill(os.getpid(), signal.SIGTERM)

    caplog.set_level(logging.INFO)
    task = operator("1000000")
    killer = threading.Thread(target=kill)
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    killer.start()
    try:
        with pytest.raises(AirflowException, match="ended"):
            task.execute({"ti": TaskInstance()})
    finally:
        killer.join()
        signal.signal(signal.SIGTERM, before)
    assert [job.entry().state for job in jobs()] == [PAUSED]


@pytest.mark.slow
def test_a_task_that_takes_too_long_pauses_the_job_of_its_agent(elsewhere, caplog):
    caplog.set_level(logging.INFO)

    def late(*_):
        if "at work" in caplog.text:
            raise AirflowTaskTimeout
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(AirflowTaskTimeout):
            run("1000000")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert [job.entry().state for job in jobs()] == [PAUSED]


def test_an_error_of_the_agent_fails_the_task_for_good_with_its_hint(elsewhere):
    with pytest.raises(AirflowFailException, match="count has stopped") as caught:
        run("many")
    assert "defect" in caught.value.hint


def test_a_connection_is_read_where_airflow_is_with_its_secrets_backends(elsewhere, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "mysql://replica:s%40cret@db1/x")
    assert call(shop_pipeline(), "password", name="shop_db") == "s@cret"
    with pytest.raises(AgentError, match="shoes_db"):
        call(shop_pipeline(), "password", name="shoes_db")


@pytest.mark.slow
def test_a_sensor_looks_through_one_agent_which_a_dead_one_s_successor_follows(elsewhere):
    sensor = SluiceReached(task_id="replica", pipeline="shop", moment=MIDNIGHT)
    elsewhere.move_checkpoint("2026-11-21T00:00:00Z")
    assert not sensor.poke({})
    first = call_kept(shop_pipeline(), "pid")
    elsewhere.move_checkpoint(MIDNIGHT)
    assert sensor.poke({})
    assert call_kept(shop_pipeline(), "pid") == first
    psutil.Process(first).kill()
    assert not sensor.poke({}), "unknown"
    assert sensor.poke({})
    assert call_kept(shop_pipeline(), "pid") != first


def test_an_agent_ends_with_its_caller(elsewhere):
    pid = call(shop_pipeline(), "pid")
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_what_a_library_prints_is_no_message(elsewhere):
    assert call(shop_pipeline(), "stray") is None


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('echo \'{"protocol": 0, "version": "0.0.9"}\'; cat', "Sluice 0.0.9.*another protocol"),
        ("echo Welcome; cat", "is gone"),
        ("exit 3", "is gone"),
    ],
)
def test_another_version_or_no_agent_at_all_is_named(shop, script, expected):
    path = shop.folder / "agent"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    answers_by(shop, path)
    with pytest.raises(AgentError, match=expected):
        call(shop_pipeline(), "pid")


def test_a_missing_interpreter_fails_the_task_at_once(shop):
    answers_by(shop, shop.folder / "nothing")
    with pytest.raises(AirflowFailException, match=r"shop\.toml: \[airflow\] python"):
        call_task(shop_pipeline(), "compact")


@pytest.mark.slow
def test_a_call_that_the_agent_has_not_is_named_with_a_hint(elsewhere):
    with pytest.raises(AgentError, match="no call 'dance'") as caught:
        call(shop_pipeline(), "dance")
    assert "same version" in caught.value.hint

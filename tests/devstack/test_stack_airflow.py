"""Spark and Airflow in the stack: tasks run, are ended for a replay, and come back after the
scheduler was killed.
"""

import contextlib
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import time
import urllib.parse

import pytest

from sluice.devstack import replay
from sluice.devstack.control import AirflowClient, Unreachable
from sluice.devstack.fresh_stack import wait_pipeline
from sluice.devstack.launch import password_file
from sluice.devstack.processes import tagged
from sluice.devstack.replay import task_processes, worker_processes
from sluice.devstack.repository import DAGS
from sluice.devstack.stack import Stack
from sluice.devstack.state import StackError
from sluice.relay.window import window_path

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

PARTS = ("spark", "airflow-api", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
DAG = """
import time
from datetime import UTC, datetime, timedelta
from airflow.sdk import dag, task

@dag(dag_id="sluice_replicate", schedule="@continuous",
     start_date=datetime(2026, 1, 1, tzinfo=UTC), max_active_runs=1,
     catchup=False, is_paused_upon_creation=False,
     default_args={"retries": 100, "retry_delay": timedelta(seconds=1)})
def replicate():
    @task
    def land():
        time.sleep(600)

    @task
    def apply():
        time.sleep(600)

    land()
    apply()

replicate()
"""


def real_dag(name):
    """The DAG `replicate` as it is, under another name, and paused."""
    text = (DAGS / "replicate.py").read_text()
    for there, wanted in (
        ('"replicate", __doc__', f"{name!r}, __doc__"),
        (
            'schedule=lambda _: "@continuous"',
            'schedule=lambda _: "@continuous", is_paused_upon_creation=True',
        ),
    ):
        assert text.count(there) == 1
        text = text.replace(there, wanted)
    return text


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("airflow")
    (folder / "dags").mkdir()
    (folder / "dags" / "replicate.py").write_text(DAG)
    (folder / "dags" / "stops.py").write_text(real_dag("stops"))
    stack = Stack(folder / "home", dags=folder / "dags")
    try:
        stack.up(PARTS)
        yield stack
    finally:
        stack.down()
    assert tagged(stack.home) == []


@pytest.fixture(scope="module")
def airflow(stack):
    return AirflowClient(stack.home, stack.site().ports["airflow"])


def tasks(stack):
    """And the processes that work for them."""
    return {process.pid for process in (*task_processes(stack), *worker_processes(stack))}


def wait_for_other_tasks(stack, before):
    deadline = time.monotonic() + 180
    while len(now := tasks(stack)) != 2 or now & before:
        assert time.monotonic() < deadline, f"tasks {now}, before {before}"
        time.sleep(0.4)


@pytest.mark.slow
def test_spark_runs_python_that_sees_this_repository(stack):
    from sluice.etl import load_settings
    from sluice.etl.spark.session import attach

    def batches(stream):
        import pyarrow

        import sluice.relay  # the workers have the repository on their path

        for _ in stream:
            yield pyarrow.RecordBatch.from_pydict({"name": [sluice.relay.__name__]})

    session = attach(load_settings(stack.site().config).spark, "test")
    try:
        rows = session.range(1, numPartitions=1).mapInArrow(batches, "name string").collect()
        assert [row.name for row in rows] == ["sluice.relay"]
        assert session.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    finally:
        session.stop()


def test_the_tasks_of_the_dag_run_once_the_stack_is_up(stack, airflow):
    wait_pipeline(stack, airflow)
    assert airflow.tasks() == {"land": "running", "apply": "running"}


def test_passwords_are_readable_by_the_owner_only_and_stand_in_no_state_file(stack, airflow):
    path = password_file(stack.home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    state = (stack.home / "state.json").read_text()
    for secret in path.parent.iterdir():
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert secret.read_text() not in state


@pytest.mark.slow
def test_halting_the_pipeline_ends_its_tasks_and_starting_it_runs_new_ones(stack, airflow):
    wait_pipeline(stack, airflow)
    before = tasks(stack)
    replay._halt_pipeline(stack, airflow)
    assert tasks(stack) == set()
    assert airflow.active_runs() == []
    airflow.pause(paused=False)
    wait_for_other_tasks(stack, before)
    wait_pipeline(stack, airflow)


@pytest.mark.slow
def test_tasks_come_back_after_the_scheduler_was_killed_and_started_again(stack, airflow):
    wait_pipeline(stack, airflow)
    before = tasks(stack)
    os.kill(stack.state().parts["airflow-scheduler"].process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while "airflow-scheduler" not in stack.dead():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert stack.up(PARTS) == ["airflow-scheduler"]
    with contextlib.closing(
        sqlite3.connect(stack.home / "airflow" / "airflow.db", timeout=60)
    ) as database:
        states = database.execute(
            "SELECT state FROM job WHERE job_type = 'SchedulerJob' ORDER BY id"
        ).fetchall()
    assert states == [("failed",), ("running",)]  # so nobody waits for the first one's heartbeat
    wait_for_other_tasks(stack, before)


def eventually(look, what, seconds=120):
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(Unreachable):  # Airflow is busy
            if found := look():
                return found
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


@pytest.mark.slow
def test_a_terminal_error_fails_the_tasks_once_pauses_the_dag_and_says_the_hint(stack, airflow):
    damaged = stack.home / "relay" / window_path(470614793860415502)
    damaged.parent.mkdir(parents=True)
    damaged.write_text("no record")

    def call(path, **change):
        return airflow._call(
            "PATCH" if change else "GET", f"/dags/sluice_stops{path}", change or None
        )

    eventually(
        lambda: "sluice_stops" in str(airflow._call("GET", "/dags")), "Airflow has not read the DAG"
    )
    call("", is_paused=False)
    runs = eventually(
        lambda: [run for run in call("/dagRuns")["dag_runs"] if run["state"] == "failed"],
        "no run has failed",
    )
    eventually(lambda: call("")["is_paused"], "the DAG goes on after a failure")
    assert [run["state"] for run in call("/dagRuns")["dag_runs"]] == ["failed"]
    run = f"/dagRuns/{urllib.parse.quote(runs[0]['dag_run_id'], safe='')}/taskInstances"
    for task in call(run)["task_instances"]:
        assert (task["state"], task["try_number"]) == ("failed", 1)
        lines = call(f"{run}/{task['task_id']}/logs/1")["content"]
        told = [
            line for line in lines if line["event"] not in ("::group::Post Execute", "::endgroup::")
        ]
        assert told[-1]["event"].startswith("hint: "), told[-5:]
        assert any(f"{task['task_id']} has stopped" in str(line) for line in told)

    damaged.unlink()
    told = sluice(stack, "status")
    assert told.returncode == 4
    for task in ("land", "apply"):
        assert re.search(f"STOPPED +{task}, at .*{damaged.name}", told.stdout), told.stdout
    assert told.stdout.count("hint ") == 2

    call("", is_paused=False)
    eventually(
        lambda: len(call("/dagRuns?state=running")["dag_runs"]) == 1,
        "the DAG does not go on when it is unpaused",
    )
    call("", is_paused=True)
    for each in call("/dagRuns?state=running")["dag_runs"]:
        call(f"/dagRuns/{urllib.parse.quote(each['dag_run_id'], safe='')}", state="success")


@pytest.mark.slow
def test_a_bootstrap_is_asked_for_by_rest_and_what_hinders_it_ends_it_at_once_with_the_hint(
    stack, airflow
):
    (stack.home.parent / "dags" / "bootstrap.py").write_text((DAGS / "bootstrap.py").read_text())
    eventually(
        lambda: "'sluice_bootstrap'" in str(airflow._call("GET", "/dags")),
        "Airflow has not read the DAG",
    )
    runs = "/dags/sluice_bootstrap/dagRuns"

    def trigger(**body):
        """What is said of it.

        The same again if no answer came, or its database was busy: then nothing was done.
        """

        def once():
            try:
                return airflow._call("POST", runs, {"logical_date": None, **body})
            except Unreachable:
                raise
            except StackError as error:
                return "" if "Database error" in str(error) else str(error)

        return str(eventually(once, "Airflow doesn't answer"))

    assert re.search("HTTP 400.*tasks", trigger(conf={"tasks": 0}))
    told = trigger(dag_run_id="one", conf={"source": "/no/such/dump"})
    assert "'dag_run_id': 'one'" in told or "HTTP 409" in told, told
    eventually(
        lambda: airflow._call("GET", f"{runs}/one")["state"] == "failed", "the run doesn't end"
    )
    found = eventually(
        lambda: airflow._call("GET", f"{runs}/one/taskInstances")["task_instances"], "no tasks"
    )
    states = {task["task_id"]: (task["state"], task["try_number"]) for task in found}
    assert states["plan"] == ("failed", 1)
    assert {states[name][0] for name in ("prepare", "copy", "finish")} == {"upstream_failed"}
    lines = eventually(
        lambda: airflow._call("GET", f"{runs}/one/taskInstances/plan/logs/1")["content"], "no log"
    )
    told = [
        line for line in lines if line["event"] not in ("::group::Post Execute", "::endgroup::")
    ]
    assert told[-1]["event"].startswith("hint: ") and "trigger the DAG" in told[-1]["event"], told[
        -5:
    ]
    assert any("/no/such/dump" in str(line) for line in told)


def sluice(stack, *words):
    return subprocess.run(
        [sys.executable, "-m", "sluice.cli", "--home", str(stack.home), *words],
        capture_output=True,
        text=True,
        timeout=60,
    )

"""Each DAG of the documentation runs as it is printed, in an Airflow with all of its processes."""

import time
import urllib.parse

import pytest

from sluice.devstack.control import AirflowClient
from sluice.devstack.stack import Stack
from tests.sluice_airflow.conftest import shop_pipeline
from tests.sluice_airflow.documented_dags import documented_dags

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PARTS = ("airflow-api", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")


class Airflow:
    """Its REST API, and the pipeline that its DAGs wait for."""

    def __init__(self, client, shop):
        self.call = client._call
        self.shop = shop

    def unpause(self, dag_id):
        eventually(lambda: dag_id in str(self.call("GET", "/dags?limit=100")), f"no DAG {dag_id}")
        self.call("PATCH", f"/dags/{dag_id}", {"is_paused": False})

    def trigger(self, dag_id, **body):
        self.unpause(dag_id)
        run = self.call("POST", f"/dags/{dag_id}/dagRuns", body)
        return f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run['dag_run_id'], safe='')}"

    def tasks(self, run):
        found = self.call("GET", f"{run}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in found}

    def log(self, run, task):
        return str(self.call("GET", f"{run}/taskInstances/{task}/logs/1")["content"])

    def wait(self, run, **states):
        eventually(lambda: self.tasks(run) == states, lambda: f"{self.tasks(run)} is not {states}")


def eventually(look, otherwise):
    deadline = time.monotonic() + 240
    while not (found := look()):
        assert time.monotonic() < deadline, otherwise() if callable(otherwise) else otherwise
        time.sleep(0.3)
    return found


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documented")
    shop = shop_pipeline(folder, "home/pipelines")
    (folder / "dags").mkdir()
    for dag_id, text in documented_dags().items():
        (folder / "dags" / f"{dag_id}.py").write_text(text)
    stack = Stack(folder / "home", dags=folder / "dags")
    try:
        stack.up(PARTS)
        yield Airflow(AirflowClient(stack.home, stack.site().ports["airflow"]), shop)
    finally:
        stack.down()


def test_the_report_of_a_day_waits_in_the_triggerer_until_the_replica_is_complete(airflow):
    airflow.shop.move_checkpoint("2026-11-21T23:59:59Z")
    run = airflow.trigger("daily_report", logical_date="2026-11-22T00:00:00Z")
    eventually(lambda: airflow.tasks(run)["replica"] == "deferred", "it does not wait")
    assert airflow.tasks(run)["report"] is None
    airflow.shop.move_checkpoint("2026-11-22T00:00:00Z")
    airflow.wait(run, replica="success", report="success")


def test_a_complete_day_runs_the_dag_that_watches_for_days_once(airflow):
    airflow.shop.move_checkpoint("2026-11-24T22:00:00Z")
    airflow.unpause("on_complete_day")
    mark = "sluice_completed_through_ms"
    eventually(lambda: mark in str(airflow.call("GET", "/assets/1/state-store")), "no watcher")
    airflow.shop.move_checkpoint("2026-11-25T00:00:00Z")
    runs = "/dags/on_complete_day/dagRuns"
    (run,) = eventually(lambda: airflow.call("GET", runs)["dag_runs"], "no run of the day")
    address = f"{runs}/{urllib.parse.quote(run['dag_run_id'], safe='')}"
    airflow.wait(address, report="success")
    assert "complete until 2026-11-25T00:00:00+00:00" in airflow.log(address, "report")

"""Each DAG of the documentation runs as it is printed, in an Airflow with all of its processes."""

import contextlib
import time
import urllib.parse

import pytest

from sluice.devstack.control import AirflowClient
from sluice.devstack.repository import DAGS
from sluice.devstack.stack import Stack
from sluice.devstack.state import StackError
from sluice.relay import Failure, RelayLog
from sluice.relay.archive import Archive
from sluice.relay.jobs import PAUSED, RUNNING, Jobs
from sluice.tidb.moments import parse_moment
from tests.sluice_airflow.conftest import archived_segment, shop_pipeline
from tests.sluice_airflow.documented_dags import documented_dags

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STUCK = """
import time
from airflow.sdk import DAG
from sluice.airflow import SluiceJobOperator
from sluice.etl.tasks import job_kinds
from sluice.relay.jobs import Jobs, WriteScope

class Stuck(job_kinds.JobKind):
    name = "stuck"

    def request(self, settings, form):
        return form

    def find(self, settings, request):
        return None

    def create(self, settings, request, by):
        jobs = Jobs.for_pipeline(settings.open_relay())
        return jobs.create(self.name, {}, WriteScope("here", ()), by)

    def run(self, settings, job, runner, show):
        with job.run(runner) as run:
            time.sleep(600)

job_kinds.job_kind = lambda name: Stuck()
"""
PLANNING = """
from types import SimpleNamespace

FOUND = dict(equal=False, differences=2, unequal=[{"name": "shop.orders"}], job="1", ts=5)

class Plan:
    problems = ()

    def lines(self):
        return ["rows of shop.orders will go"]

def run(self, settings, job, runner, show):
    with job.run(runner) as run:
        run.end("done", result=FOUND)
    return SimpleNamespace(state="done")

Stuck.plan = lambda *_: Plan()
Stuck.run = run
"""
STUCK_DAG = """
with DAG("stuck", schedule=None):
    SluiceJobOperator(task_id="work", kind="stuck", pipeline="shop", form={}, retries=0)
"""
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

    def log(self, run, task, attempt=1):
        try:
            return str(self.call("GET", f"{run}/taskInstances/{task}/logs/{attempt}")["content"])
        except StackError:  # the task isn't there yet
            return ""

    def logged(self, run, task, text):
        eventually(lambda: text in self.log(run, task), lambda: self.log(run, task))

    def jobs(self):
        storage = RelayLog.open(f"file://{self.shop.folder}/log").storage
        return Jobs(storage, "shop").list()

    def answer(self, run, task, body):
        """Answer a question until the answer is taken.

        The scheduler fails an attempt whose answer comes before it has seen the task park, and
        Airflow asks again. A person is never that fast, so it waits longer at each attempt.
        """
        details = f"{run}/taskInstances/{task}/-1/hitlDetails"
        pauses = iter([3, 6, 12, 24])

        def is_taken():
            if (state := self.tasks(run)[task]) != "awaiting_input":
                return state == "success"
            with contextlib.suppress(StackError):  # between two attempts there is no question
                if not self.call("GET", details)["response_received"]:
                    time.sleep(next(pauses))
                    self.call("PATCH", details, body)
            return False

        eventually(is_taken, lambda: f"{self.tasks(run)} {self.log(run, task)}")

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
    shop = shop_pipeline(
        folder,
        "home/pipelines",
        '[airflow]\nassets = ["shop.orders"]\ndifferences = "event"\ndecisions = true\n',
    )
    (folder / "dags").mkdir()
    (folder / "dags" / "assets.py").write_text((DAGS / "assets.py").read_text())
    (folder / "dags" / "decide.py").write_text((DAGS / "decide.py").read_text())
    (folder / "dags" / "stuck.py").write_text(STUCK + STUCK_DAG)
    for name in ("backfill.py", "verify.py"):
        text = (DAGS / name).read_text().replace("from __future__", "# from __future__")
        (folder / "dags" / name).write_text(STUCK + PLANNING + text)
    for dag_id, text in documented_dags().items():
        (folder / "dags" / f"{dag_id}.py").write_text(text)
    stack = Stack(folder / "home", dags=folder / "dags")
    try:
        stack.up(PARTS)
        yield Airflow(AirflowClient(stack.home, stack.site().ports["airflow"]), shop)
    finally:
        stack.down()


@pytest.mark.beyond_ci
def test_the_report_of_a_day_waits_in_the_triggerer_until_the_replica_is_complete(airflow):
    airflow.shop.move_checkpoint("2026-11-21T23:59:59Z")
    run = airflow.trigger("daily_report", logical_date="2026-11-22T00:00:00Z")
    eventually(lambda: airflow.tasks(run)["replica"] == "deferred", "it does not wait")
    assert airflow.tasks(run)["report"] is None
    airflow.shop.move_checkpoint("2026-11-22T00:00:00Z")
    airflow.wait(run, replica="success", report="success")


@pytest.mark.beyond_ci
def test_each_complete_day_runs_the_dag_that_watches_for_days(airflow):
    airflow.shop.move_checkpoint("2026-11-22T22:00:00Z")
    airflow.unpause("on_complete_day")
    (asset,) = airflow.call("GET", "/assets?name_pattern=shop_replica")["assets"]
    store, mark = f"/assets/{asset['id']}/state-store", "sluice_completed_through_ms"
    eventually(lambda: mark in str(airflow.call("GET", store)), "no watcher")
    airflow.shop.move_checkpoint("2026-11-23T00:00:00Z")

    def days():
        runs = "/dags/on_complete_day/dagRuns"
        found = [run["dag_run_id"] for run in airflow.call("GET", runs)["dag_runs"]]
        return [
            airflow.log(f"{runs}/{urllib.parse.quote(run, safe='')}", "report") for run in found
        ]

    eventually(lambda: "complete until 2026-11-23T00:00:00+00:00" in str(days()), days)
    airflow.shop.move_checkpoint("2026-11-25T01:00:00Z")
    for day in (24, 25):
        eventually(lambda: f"complete until 2026-11-{day}T00:00:00+00:00" in str(days()), days)


def test_a_check_that_fails_keeps_the_report_from_running(airflow):
    airflow.shop.move_checkpoint("2026-11-25T00:00:00Z")
    run = airflow.trigger("checked_report", logical_date="2026-11-22T00:00:00Z")
    airflow.wait(run, replica="success", check="failed", report="upstream_failed")
    airflow.logged(run, "check", "hint: ")


def test_an_archived_day_of_a_table_runs_the_dag_of_its_partition(airflow):
    airflow.unpause("orders_of_a_day")
    run = airflow.trigger("sluice_assets_shop", logical_date=None, partition_key="2026-11-22")
    eventually(lambda: airflow.tasks(run)["archived"] == "deferred", "it does not wait")
    first, end = (parse_moment(f"2026-11-{day}T00:00:00Z") for day in (20, 23))
    Archive.open(f"file://{airflow.shop.folder}/log/archive").append(archived_segment(first, end))
    airflow.wait(run, archived="success")
    runs = "/dags/orders_of_a_day/dagRuns"
    (found,) = eventually(lambda: airflow.call("GET", runs)["dag_runs"], "no run of the day")
    assert found["partition_key"] == "2026-11-22"
    address = f"{runs}/{urllib.parse.quote(found['dag_run_id'], safe='')}"
    airflow.wait(address, load="success")
    airflow.logged(address, "load", "changes of 2026-11-22")


def test_a_task_that_is_marked_in_airflow_pauses_its_job_at_once(airflow):
    run = airflow.trigger("stuck", logical_date=None)

    def state():
        return [job.entry().state for job in airflow.jobs() if "DAG stuck" in job.spec.by]

    eventually(lambda: state() == [RUNNING], "the job doesn't begin")
    airflow.call("PATCH", f"{run}/taskInstances/work", {"new_state": "failed"})
    eventually(lambda: state() == [PAUSED], state)
    links = airflow.call("GET", f"{run}/taskInstances/work/links")["extra_links"]
    assert links["Job in Sluice"].endswith("/sluice/jobs?pipeline=shop#job-stuck")


@pytest.mark.beyond_ci
def test_a_job_of_sluice_s_own_dag_is_waited_for_without_a_worker(airflow):
    airflow.unpause("sluice_verify_shop")
    run = airflow.trigger("check_elsewhere", logical_date="2026-11-22T00:00:00Z")
    airflow.wait(run, check="success")
    runs = airflow.call("GET", "/dags/sluice_verify_shop/dagRuns")["dag_runs"]
    # for two hours after midnight Airflow has a scheduled run of either DAG, too
    found = [run for run in runs if run["run_type"] != "scheduled"]
    assert found and all(run["conf"] == {"tables": ["shop.orders"]} for run in found)
    assert "success" in [run["state"] for run in found]


def test_a_verification_that_found_differences_runs_the_dag_of_its_asset(airflow):
    airflow.unpause("after_verification")
    run = airflow.trigger("sluice_verify_shop", logical_date=None)
    airflow.wait(run, plan="success", compare="success")
    runs = "/dags/after_verification/dagRuns"
    found = eventually(lambda: airflow.call("GET", runs)["dag_runs"], "no run of the asset's DAG")
    address = f"{runs}/{urllib.parse.quote(found[0]['dag_run_id'], safe='')}"
    airflow.wait(address, look="success")
    airflow.logged(address, "look", "False 2 ['shop.orders']")


@pytest.mark.parametrize("answer", ["Approve", "Reject"])
def test_a_job_begins_once_a_person_has_approved_the_plan_that_airflow_shows(airflow, answer):
    conf = {"tables": ["shop.orders"], "approve": True}
    run = airflow.trigger("sluice_backfill_shop", logical_date=None, conf=conf)
    details = f"{run}/taskInstances/approve/-1/hitlDetails"
    eventually(lambda: airflow.tasks(run)["approve"] == "awaiting_input", "it does not wait")
    assert "rows of shop.orders will go" in airflow.call("GET", details)["body"]
    before = len(airflow.jobs())
    approved = answer == "Approve"
    airflow.answer(run, "approve", {"chosen_options": [answer]})
    work = "success" if approved else "skipped"
    airflow.wait(run, plan="success", approve="success", work=work)
    assert len(airflow.jobs()) - before == approved
    assert airflow.call("GET", details)["responded_by_user"]["name"] == "admin"


def test_a_person_decides_in_airflow_about_what_has_stopped(airflow):
    airflow.unpause("sluice_decide_shop")
    relay = RelayLog.open(f"file://{airflow.shop.folder}/log", "shop")
    relay.failures.note(Failure("apply", "row 7 was refused", "`sluice txn skip 5`", 1))
    runs = "/dags/sluice_decide_shop/dagRuns"
    found = eventually(lambda: airflow.call("GET", runs)["dag_runs"], "no question")
    run = f"{runs}/{urllib.parse.quote(found[0]['dag_run_id'], safe='')}"
    details = f"{run}/taskInstances/ask/-1/hitlDetails"
    eventually(lambda: airflow.tasks(run)["ask"] == "awaiting_input", "it does not wait")
    asked = airflow.call("GET", details)
    assert "row 7 was refused" in asked["body"] and "sluice txn skip 5" in asked["body"]
    assert asked["subject"].startswith("apply has stopped")
    assert asked["options"] == ["Skip the transaction", "Skip the DDL", "Wait"]
    commit_ts = parse_moment("2026-11-27T00:00:00Z")
    answer = {
        "chosen_options": ["Skip the transaction"],
        "params_input": {"commit_ts": str(commit_ts), "why": "a test"},
    }
    airflow.answer(run, "ask", answer)
    airflow.wait(run, look="success", ask="success", act="success")
    (override,) = relay.overrides.list()
    assert (override.commit_ts, override.by, override.why) == (commit_ts, "airflow admin", "a test")

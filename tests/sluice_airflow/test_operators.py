"""Operators run jobs as their DAGs' forms do, and a killed task pauses its job."""

from __future__ import annotations

import os
import runpy
import signal
import threading
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, AirflowTaskTimeout

import sluice.airflow as airflow
from sluice.airflow.agent_client import TaskFailedPermanently
from sluice.airflow.operators import approved_form, job_form
from sluice.etl.settings.pipelines import pipelines
from sluice.etl.tasks import job_kinds
from sluice.etl.verify.result import UnequalError
from sluice.relay.jobs import DONE, PAUSED, JobRun, Jobs
from sluice.tidb.moments import parse_moment
from tests.dags.test_dags import DAGS
from tests.sluice_airflow.counting_kind import CountingKind

OPERATORS = {
    "backfill": airflow.SluiceBackfillOperator,
    "bootstrap": airflow.SluiceBootstrapOperator,
    "restore": airflow.SluiceRestoreOperator,
    "restore_drill": airflow.SluiceRestoreDrillOperator,
    "snapshot": airflow.SluiceSnapshotOperator,
    "verify": airflow.SluiceVerifyOperator,
}


@pytest.fixture
def count(shop, monkeypatch):
    registered = job_kinds.RegisteredKind("no module", "count", dag="count")
    monkeypatch.setitem(job_kinds.KINDS, "count", registered)
    monkeypatch.setattr(job_kinds, "job_kind", lambda name: CountingKind())
    CountingKind.at_work.clear()
    return Jobs.for_pipeline(pipelines()["shop"].settings.open_relay())


class TaskInstance(SimpleNamespace):
    """What a context has of it."""

    def xcom_push(self, key, value):
        self.pushed = {key: value}


def context(run_id="manual__1"):
    return {"ti": TaskInstance(run_id=run_id, dag_id="report", task_id="check")}


def operator(steps, **options):
    return airflow.SluiceJobOperator(
        task_id="check", kind="count", pipeline="shop", form={"tables": [steps]}, **options
    )


def test_operators_have_the_fields_of_their_dags_forms_with_their_defaults(monkeypatch):
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)
    for kind, made in OPERATORS.items():
        params = runpy.run_path(str(DAGS / f"{kind}.py"))["PARAMS"]
        fields = {name: param.value for name, param in params.items()}
        dropped = {"plan_only", "approve", "until_time", "at_time"} | (
            {"tasks"} if kind == "bootstrap" else set()
        )
        assert made.fields == {name: it for name, it in fields.items() if name not in dropped}


def test_a_field_that_the_form_does_not_have_is_refused_while_the_file_is_parsed():
    with pytest.raises(TypeError, match="tabels"):
        airflow.SluiceVerifyOperator(task_id="check", tabels=["a.b"])


def test_an_operator_runs_its_job_and_returns_the_result_and_names_the_dag_as_who_asked(count):
    found = context()
    assert operator("3").execute(found) == {"steps": 3}
    (job,) = count.list()
    assert (job.entry().state, job.spec.by) == (DONE, "airflow manual__1 of the DAG report")
    assert job_kinds.dag_run_of(job.spec) is None, "no run of a DAG of Sluice's"
    assert found["ti"].pushed["_link_JobLink"].endswith(f"/sluice/jobs?pipeline=shop#job-{job.id}")


def test_fields_of_the_form_and_the_pipeline_are_templates():
    with DAG("report", schedule=None):
        made = airflow.SluiceVerifyOperator(
            task_id="check", pipeline="{{ params.of }}", tables=["shop.{{ ds }}"]
        )
    made.render_template_fields({"params": {"of": "shop"}, "ds": "2026-11-22"})
    assert (made.pipeline, made.form["tables"]) == ("shop", ["shop.2026-11-22"])


def test_a_task_without_a_job_is_skipped(shop):
    task = airflow.SluiceJobOperator(task_id="work", kind="count", pipeline="shop")
    for params in ({}, {"approve": False}, {"approve": True, "plan_only": True}):
        with pytest.raises(AirflowSkipException):
            task.execute(context() | {"params": params})


def test_a_task_whose_plan_was_approved_begins_the_job_of_its_dags_form(count):
    task = airflow.SluiceJobOperator(task_id="work", kind="count", pipeline="shop")
    form = {"approve": True, "plan_only": False, "tables": ["2"]}
    assert task.execute(context() | {"params": form}) == {"steps": 2}
    (job,) = count.list()
    assert job.spec.by == "airflow manual__1"


def test_a_killed_task_pauses_its_job_ends_spark_and_its_next_attempt_goes_on(count, monkeypatch):
    interrupted = []
    monkeypatch.setattr("sluice.etl.spark.session.interrupt_all", lambda: interrupted.append(1))
    task = operator("1000000")
    # as Airflow's task runner does
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    killer = threading.Thread(
        target=lambda: CountingKind.at_work.wait(60) and os.kill(os.getpid(), signal.SIGTERM)
    )
    try:
        killer.start()
        with pytest.raises(AirflowException, match="is paused"):
            task.execute(context())
    finally:
        killer.join()
        signal.signal(signal.SIGTERM, before)
    (job,) = count.list()
    assert (job.entry().state, interrupted) == (PAUSED, [1])
    monkeypatch.setattr(CountingKind, "limit", 2)
    assert operator("1000000").execute(context()) == {"steps": 2}
    assert [each.id for each in count.list()] == [job.id], "no second job"


def test_a_job_whose_task_takes_too_long_is_paused_and_spark_ends_its_work(count, monkeypatch):
    interrupted = []
    monkeypatch.setattr("sluice.etl.spark.session.interrupt_all", lambda: interrupted.append(1))

    def late(run):
        raise AirflowTaskTimeout

    monkeypatch.setattr(JobRun, "check_order", late)
    with pytest.raises(AirflowTaskTimeout):
        operator("1").execute(context())
    assert ([job.entry().state for job in count.list()], interrupted) == ([PAUSED], [1])


def test_a_kill_that_comes_before_or_after_the_work_changes_nothing(count):
    task = operator("1")
    task.on_kill()
    task.execute(context())
    task.on_kill()


def test_the_asset_of_a_table_has_its_schema_and_its_name_apart():
    assert airflow.table_asset("shop", "shop.orders").uri == "sluice://shop/shop/orders"
    assert airflow.table_asset("", "`my.db`.a/b").uri == "sluice://sluice.toml/my.db/a%2Fb"
    for text in ("orders", ".orders", "shop."):
        with pytest.raises(ValueError, match="names no table"):
            airflow.table_asset("shop", text)


class ComparingKind(CountingKind):
    """Ends at once, with a row that differs or none."""

    equal = False

    def run(self, settings, job, runner, show):
        found = {"equal": self.equal, "differences": 0 if self.equal else 1, "ts": 5}
        unequal = [] if self.equal else [{"name": "shop.orders", "differences": 1}]
        with job.run(runner) as run:
            run.end(DONE, result=found | {"unequal": unequal, "job": job.id, "seconds": 1.5})
        return SimpleNamespace(state=DONE)

    def check(self, summary):
        if not self.equal:
            raise UnequalError("a row differs")


@pytest.mark.parametrize(("equal", "fails"), [(True, True), (True, False), (False, False)])
def test_what_a_verification_found_is_in_the_event_of_its_asset(count, monkeypatch, equal, fails):
    monkeypatch.setattr(job_kinds, "job_kind", lambda name: ComparingKind())
    monkeypatch.setattr(ComparingKind, "equal", equal)
    asset = airflow.verified_asset("shop")
    events = {asset: SimpleNamespace(extra=None), "other": SimpleNamespace(extra=None)}
    task = operator("1", outlets=[asset], fail_on_differences=fails)
    assert task.execute(context() | {"outlet_events": events})["equal"] is equal
    (job,) = count.list()
    assert (asset.uri, events["other"].extra) == ("sluice://shop/verified", None)
    assert events[asset].extra == {
        "equal": equal,
        "differences": int(not equal),
        "unequal": [] if equal else ["shop.orders"],
        "job": job.id,
        "ts": 5,
    }


def test_differences_fail_a_verification_unless_it_says_otherwise_and_then_have_no_event(
    count, monkeypatch
):
    monkeypatch.setattr(job_kinds, "job_kind", lambda name: ComparingKind())
    asset = airflow.verified_asset("shop")
    events = {asset: SimpleNamespace(extra=None)}
    with pytest.raises(TaskFailedPermanently, match="a row differs"):
        operator("1", outlets=[asset]).execute(context() | {"outlet_events": events})
    assert events[asset].extra is None


def test_a_moment_is_typed_or_picked_from_a_calendar_but_not_both():
    picked = {"until": None, "until_time": "2026-11-22T12:00:00.000Z", "tables": ["a.b"]}
    expected = {"until": "2026-11-22T12:00:00.000Z", "tables": ["a.b"]}
    assert job_form(picked) == expected
    assert job_form({"until": "7", "until_time": None}) == {"until": "7"}
    assert approved_form(picked | {"approve": True}) == expected
    assert parse_moment(expected["until"]) == parse_moment("2026-11-22T13:00:00+01:00")
    with pytest.raises(TaskFailedPermanently, match="two moments: until is '7'"):
        job_form({"until": "7", "until_time": "2026-11-22T12:00:00.000Z"})

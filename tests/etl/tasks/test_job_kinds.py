"""One registry of the kinds of jobs: commands, DAGs and pages read it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from sluice.cli import group
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.etl.tasks.job_kinds import (
    KINDS,
    JobKind,
    RegisteredKind,
    begin,
    dag_run_of,
    job_kind,
    requester,
)
from sluice.pages.job_list import job_document
from sluice.relay.jobs import JobError, Jobs, JobSpec, WriteScope

DAGS = Path(__file__).resolve().parents[3] / "dags"
STEPS = ("request", "create", "run", "cancel", "lines")


class Named:
    """A pipeline as the pages have it."""

    name = "shop"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def dag_id(self, kind: str) -> str:
        return f"{kind}_shop"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        Upstream("http://127.0.0.1:1"),
        Relay(f"file://{tmp_path}/relay"),
        Downstream(host="127.0.0.1", port=1),
    )


def spec_of(kind: str, by: str) -> JobSpec:
    return JobSpec(f"{kind}-1", kind, {}, WriteScope(""), by, 0, "t")


@pytest.mark.parametrize(("name", "registered"), KINDS.items())
def test_each_kind_of_jobs_is_offered_by_command_dag_and_page_alike(
    name: str, registered: RegisteredKind, settings: Settings
) -> None:
    steps = job_kind(name)
    assert steps.name == name
    assert [one for one in STEPS if getattr(type(steps), one) is getattr(JobKind, one)] == []
    words = registered.command.removesuffix(" --files").split()
    shown = CliRunner().invoke(group, [*words, "--help"])
    assert shown.exit_code == 0, shown.output
    jobs = Jobs.for_pipeline(settings.open_relay())
    job = jobs.create(name, {}, WriteScope("nowhere", ()), requester("manual__1"))
    page = job_document(cast("Any", Named(settings)), job.id, "")["job"]
    if not registered.dag:
        assert page["run"] is None
        return
    assert page["run"] == {
        "dag": registered.dag,
        "dag_id": f"{registered.dag}_shop",
        "id": "manual__1",
    }
    wiring = re.sub(r"\s+", "", (DAGS / f"{registered.dag}.py").read_text())
    assert any(f'(pipeline,"{one}"' in wiring for one in (registered.dag, name))


def test_a_job_that_a_page_resumes_is_found_by_its_id_whatever_the_form_says(
    settings: Settings,
) -> None:
    jobs = Jobs.for_pipeline(settings.open_relay())
    job = jobs.create("verify", {"tables": ["a.b"]}, WriteScope(""), requester("manual__1"))
    said = {"tables": [], "how": "auto", "plan_only": True, "job": job.id}
    assert begin(settings, "verify", said, "manual__2")["job"] == job.id


def test_a_dag_resumes_no_job_of_another_dag_or_of_the_command_line(settings: Settings) -> None:
    """Its form's limits on targets were not applied to these."""
    jobs = Jobs.for_pipeline(settings.open_relay())
    typed = jobs.create("restore", {}, WriteScope("x", ("a.b",)), "ann@host")
    other = jobs.create("verify", {}, WriteScope("x", ("a.c",)), requester("manual__1"))
    for job in (typed, other):
        with pytest.raises(JobError, match="was not asked for by a run of the DAG restore"):
            begin(settings, "restore", {"job": job.id}, "manual__2")


def test_a_job_tells_which_run_of_which_dag_asked_for_it() -> None:
    assert dag_run_of(spec_of("drill", "airflow scheduled__1")) == ("restore_drill", "scheduled__1")
    assert dag_run_of(spec_of("drill", "ann@host")) is None
    assert dag_run_of(spec_of("reapply", "airflow manual__1")) is None
    assert dag_run_of(spec_of("of a later version", "airflow manual__1")) is None
    with pytest.raises(JobError, match="no jobs of the kind of a later version"):
        job_kind("of a later version")

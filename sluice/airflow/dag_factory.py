"""Make a DAG a pipeline of a DAG file, with the settings of section ``[airflow]``.

Parsed by Airflow all the time: nothing heavy is imported before a task runs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from sluice.airflow.agent_client import call, call_task
from sluice.airflow.notifying import Notifier
from sluice.airflow.operators import PICKED, SluiceJobOperator, job_form, log_hint
from sluice.airflow.versions import (
    AirflowSkipException,
    DeadlineAlert,
    DeadlineReference,
    DeltaTriggerTimetable,
    SyncCallback,
)
from sluice.etl.settings.airflow_section import Airflow
from sluice.etl.settings.pauses import span_ms
from sluice.etl.settings.pipelines import NamedPipeline, pipelines
from sluice.etl.tasks.airflow_run import is_scheduled

__all__ = [
    "approval_param",
    "approve_task",
    "check_task",
    "dag_per_pipeline",
    "job_tasks",
    "moment_params",
    "plan_task",
]

_START_DATE = datetime(2024, 1, 1, tzinfo=UTC)
"""Without a start, Airflow gives every run of a DAG that runs continuously the first one's date,
and skips it.
"""
_LOOP: dict[str, Any] = {
    "retries": 1_000,  # of killed tasks; what passes is waited for inside of them
    "retry_delay": timedelta(seconds=1),
    "do_xcom_push": False,
}
_PLAN = "```text\n{{ ti.xcom_pull(task_ids='plan', key='plan') }}\n```"
_JOB: dict[str, Any] = {
    "retries": 5,  # each attempt goes on where the last one was killed
    "retry_delay": timedelta(seconds=5),
    "retry_exponential_backoff": True,  # 3.1 takes no factor
    "max_retry_delay": timedelta(minutes=5),
}


def dag_per_pipeline(
    kind: str,
    doc: str | None,
    wire: Callable[[NamedPipeline], object],
    *,
    schedule: Callable[[NamedPipeline], Any] = lambda _: None,
    exists: Callable[[NamedPipeline], bool] = lambda _: True,
    **options: Any,
) -> None:
    """Make the DAG `kind` of each pipeline for which it `exists`, with the tasks of `wire`.

    `schedule`: Airflow's, or the time between two runs; without one it runs when it is triggered,
    with one it has one run at a time. Killed tasks of a DAG that runs continuously are started
    again at once and as often as it takes. `options`: as Airflow's DAG.
    """
    for pipeline in filter(exists, pipelines().values()):
        section, when = pipeline.airflow, schedule(pipeline)
        usual: dict[str, Any] = {"catchup": False, "default_args": _task_options(pipeline, kind)}
        if when is not None:
            usual |= {"max_active_runs": 1, "start_date": _START_DATE}
        if when == "@continuous":
            usual["default_args"] |= _LOOP | {"priority_weight": section.priority_weight}
        else:
            usual["default_args"] |= _job_options(section)
            usual |= {"deadline": _deadline(section)} if section.deadline else {}
        if section.owner_link:
            usual["owner_links"] = {section.owner: section.owner_link}
        if section.access_control:
            usual["access_control"] = _access_control(section)
        usual["default_args"] |= options.get("default_args", {})
        with DAG(
            pipeline.dag_id(kind),
            dag_display_name=_display_name(kind, pipeline),
            schedule=DeltaTriggerTimetable(when) if isinstance(when, timedelta) else when,
            tags=pipeline.tags,
            description=_description(doc),
            doc_md=doc,
            **usual | {key: it for key, it in options.items() if key != "default_args"},
        ):
            wire(pipeline)


def _task_options(pipeline: NamedPipeline, kind: str) -> dict[str, Any]:
    section = pipeline.airflow
    notifiers = [Notifier(pipeline, kind, call)] if section.notify else []
    return {
        "owner": section.owner,
        "on_failure_callback": [log_hint, *notifiers],
        **{key: it for key in ("queue", "executor") if (it := getattr(section, key))},
    }


def _job_options(section: Airflow) -> dict[str, Any]:
    options = dict(_JOB)
    if section.pool:
        options["pool"] = section.pool
    if section.timeout:
        options["execution_timeout"] = timedelta(milliseconds=span_ms(section.timeout))
    return options


def _deadline(section: Airflow) -> DeadlineAlert:
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(milliseconds=span_ms(section.deadline)),
        callback=SyncCallback(section.notify),
    )


def _access_control(section: Airflow) -> dict[str, dict[str, set[str]]]:
    """Return what roles may do, as the FAB auth manager takes it."""
    return {
        role: {"DAGs": {action.strip() for action in actions.split(",")}}
        for role, actions in section.access_control.items()
    }


def _display_name(kind: str, pipeline: NamedPipeline) -> str:
    """Return the DAG's name for people, which Airflow's lists show and search."""
    of = f" ({pipeline.name})" if pipeline.name else ""
    return f"Sluice: {kind.replace('_', ' ')}{of}"


def _description(doc: str | None) -> str:
    """Return a DAG file's first line without the DAG's name."""
    text = (doc or "").partition("\n")[0].partition(": ")[2]
    return text[:1].upper() + text[1:]


def plan_task(pipeline: NamedPipeline, kind: str) -> Any:
    """Make the task `plan`, which begins a job of the kind; see `sluice.etl.tasks.job_kinds.begin`.

    Return its value `job`: the job's id, None if nothing is to be done. It is skipped if the
    schedule began the run, and nothing is due.
    """

    @task(multiple_outputs=True, do_xcom_push=True)
    def plan(
        params: dict[str, Any] | None = None, run_id: str | None = None, dag_run: Any = None
    ) -> dict[str, Any]:
        form = job_form(params or {})
        if form.get("approve"):
            form["plan_only"] = (
                True  # the job begins after it: until then no other job waits for it
            )
        found: dict[str, Any] = call_task(
            pipeline,
            "begin",
            kind=kind,
            form=form,
            run_id=run_id or "",
            scheduled=is_scheduled(dag_run),
        )
        if why := found.pop("not_due", ""):
            raise AirflowSkipException(why)
        return found

    return plan()["job"]


class ApprovePlan(ApprovalOperator):  # type: ignore[misc] # Airflow is untyped
    """Show the plan under Required actions until a person approves or rejects it.

    Rejected, the job is skipped. It succeeds at once where the form asks for no approval, and where
    nothing is left to be approved: only a plan is wanted, or a job is resumed.
    """

    def execute(self, context: Any) -> Any:
        """Wait for a person if the form says so."""
        params, ti = context["params"], context["ti"]
        began = ti.xcom_pull(task_ids="plan", key="job")
        if params.get("approve") and not params.get("plan_only") and began is None:
            super().execute(context)


def job_tasks(pipeline: NamedPipeline, kind: str, *, task_id: str = "work", **options: Any) -> None:
    """Make the tasks of a DAG of jobs: `plan`, then `task_id`, which runs or resumes the job.

    With the parameter `approve` in the DAG's form a person approves the plan in between. `options`:
    as `SluiceJobOperator`.
    """
    job = plan_task(pipeline, kind)
    work = SluiceJobOperator(task_id=task_id, kind=kind, pipeline=pipeline.name, job=job, **options)
    if "approve" in work.dag.params:
        job >> approve_task(kind) >> work


def approval_param(*, default: bool) -> Param:
    """Return the field `approve` of a form, for `approve_task`."""
    return Param(
        default=default,
        type="boolean",
        title="Wait for approval",
        description=(
            "Show the plan under Required actions, and begin when a person has approved it. Who did"
            " is kept with the run."
        ),
    )


def moment_params(name: str, title: str, description: str) -> dict[str, Param]:
    """Return two fields for one moment: a text, and a date with a time, which Airflow lets pick."""
    return {
        name: Param(None, type=["null", "string"], title=title, description=description),
        f"{name}{PICKED}": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title=f"{title}: or this time",
            description="In place of the field above.",
        ),
    }


def approve_task(kind: str) -> Any:
    """Make the task `approve`, behind which the job of a plan begins; see `ApprovePlan`."""
    return ApprovePlan(
        task_id="approve",
        subject=f"Begin this {kind}?",
        body=_PLAN,
        execution_timeout=None,  # a person may take their time
    )


def check_task(pipeline: NamedPipeline, what: str, *, task_id: str) -> Any:
    """Make the only task of a DAG that does something if it is due, and is skipped if not.

    `what`: ``quality`` or ``drill``, with the form's fields.
    """

    @task(task_id=task_id)
    def look(
        params: dict[str, Any] | None = None, run_id: str | None = None, dag_run: Any = None
    ) -> dict[str, Any]:
        found: dict[str, Any] | None = call_task(
            pipeline,
            "check",
            what=what,
            form=job_form(params or {}),
            run_id=run_id or "",
            scheduled=is_scheduled(dag_run),
        )
        if found is None:
            raise AirflowSkipException("nothing is due")
        return found

    return look()

"""How DAG files make a DAG a pipeline, and the tasks that DAGs of jobs have in common.

Parsed by Airflow all the time: nothing heavy is imported before a task runs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from airflow.sdk import DAG, task

from sluice.etl.settings.pipelines import NamedPipeline, pipelines
from sluice.etl.tasks.task_errors import TASK_ERRORS

__all__ = ["check_task", "dag_per_pipeline", "job_tasks", "plan_task"]

_START_DATE = datetime(2024, 1, 1, tzinfo=UTC)
"""Without a start, Airflow gives every run of a DAG that runs continuously the first one's date,
and skips it.
"""


def dag_per_pipeline(
    kind: str,
    doc: str | None,
    wire: Callable[[NamedPipeline], object],
    *,
    schedule: Any = None,
    **options: Any,
) -> None:
    """Make the DAG `kind` of each pipeline, with the tasks that `wire` makes.

    `schedule`, `options`: as Airflow's DAG; without a schedule it runs when it is triggered, with
    one it has one run at a time.
    """
    usual: dict[str, Any] = {
        "catchup": False,
        "is_paused_upon_creation": False,
        "default_args": TASK_ERRORS,
    }
    if schedule is not None:
        usual |= {"max_active_runs": 1, "start_date": _START_DATE}
    usual |= options
    for pipeline in pipelines().values():
        with DAG(pipeline.dag_id(kind), schedule=schedule, tags=pipeline.tags, doc_md=doc, **usual):
            wire(pipeline)


def plan_task(pipeline: NamedPipeline, kind: str) -> Any:
    """Make the task `plan`, which begins a job of the kind; see `sluice.etl.tasks.job_kinds.begin`.

    Return its value `job`: the job's id, None if nothing is to be done.
    """

    @task(multiple_outputs=True)
    def plan(params: dict[str, Any] | None = None, run_id: str | None = None) -> dict[str, Any]:
        from sluice.etl.tasks.airflow_task import run_job_task
        from sluice.etl.tasks.job_kinds import begin

        return run_job_task(
            pipeline, "plan", lambda settings: begin(settings, kind, params or {}, run_id or "")
        )

    return plan()["job"]


def job_tasks(pipeline: NamedPipeline, kind: str, *, task_id: str = "work") -> None:
    """Make the tasks of a DAG of jobs: `plan`, then `task_id`, which runs or resumes the job."""

    @task(task_id=task_id)
    def work(job: str | None, run_id: str | None = None) -> dict[str, Any]:
        from sluice.etl.tasks import job_kinds
        from sluice.etl.tasks.airflow_task import run_job_task

        return run_job_task(
            pipeline, kind, lambda settings: job_kinds.work(settings, kind, job, run_id or "")
        )

    work(plan_task(pipeline, kind))


def check_task(pipeline: NamedPipeline, room: str, what: str, *, task_id: str) -> Any:
    """Make the only task of a DAG that does something if it is due.

    It calls the function `task_id` of the module `room`, with the run's id and the form's fields.
    """

    @task(task_id=task_id)
    def look(
        params: dict[str, Any] | None = None, run_id: str | None = None
    ) -> dict[str, Any] | None:
        from sluice.etl.tasks.airflow_task import run_job_task

        found: dict[str, Any] | None = run_job_task(
            pipeline,
            what,
            lambda settings: getattr(import_module(room), task_id)(
                settings, run_id or "", params or {}
            ),
        )
        return found

    return look()

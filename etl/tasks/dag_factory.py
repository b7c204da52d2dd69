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

__all__ = ["check_task", "dag_per_pipeline", "job_task", "plan_task", "plan_task_with_text"]

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


def plan_task(pipeline: NamedPipeline, room: str) -> Any:
    """The task `plan`: `begin` of the module `room`, with the form's fields and the run's id.

    Its value is the job's id, None if nothing is to be done.
    """

    @task
    def plan(params: dict[str, Any] | None = None, run_id: str | None = None) -> str | None:
        found: str | None = _job_task(pipeline, "plan", room, "begin", params or {}, run_id or "")
        return found

    return plan()


def plan_task_with_text(pipeline: NamedPipeline, room: str) -> Any:
    """The task `plan` that tells the plan, too: its values are `plan` and `job`."""

    @task(multiple_outputs=True)
    def plan(params: dict[str, Any] | None = None, run_id: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = _job_task(
            pipeline, "plan", room, "begin", params or {}, run_id or ""
        )
        return found

    return plan()


def job_task(
    pipeline: NamedPipeline, room: str, what: str, job: Any, *, task_id: str = "work"
) -> Any:
    """The task that does the job, or goes on with it: `work` of the module `room`.

    `what`: how its errors call it.
    """

    @task(task_id=task_id)
    def work(job: str | None, run_id: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = _job_task(pipeline, what, room, "work", job, run_id or "")
        return found

    return work(job)


def check_task(pipeline: NamedPipeline, room: str, what: str, *, task_id: str) -> Any:
    """The only task of a DAG that looks whether something is due, and does it: the function
    `task_id` of the module `room`, with the run's id and the form's fields.
    """

    @task(task_id=task_id)
    def look(
        params: dict[str, Any] | None = None, run_id: str | None = None
    ) -> dict[str, Any] | None:
        found: dict[str, Any] | None = _job_task(
            pipeline, what, room, task_id, run_id or "", params or {}
        )
        return found

    return look()


def _job_task(pipeline: NamedPipeline, what: str, room: str, name: str, *said: Any) -> Any:
    """Of what the task `what` does, the errors as tasks have them."""
    from sluice.etl.tasks.airflow_task import run_job_task

    return run_job_task(
        pipeline, what, lambda settings: getattr(import_module(room), name)(settings, *said)
    )

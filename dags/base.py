"""DAG ``base``: all tables as of one moment, put into the archive; a restore begins there.

It looks once an hour, and makes a base when the youngest one is older than `[archive] bases-every` says. Triggered with
a form, it makes one at once: `plan` says what will be done and what hinders it; `work` is a job: killed, or triggered
again with the same values, it goes on with what is left; `sluice jobs` shows how far it is, pauses it, and gives it up.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag, task

from errors.of_tasks import TASK_ERRORS
from etl.settings.pipelines import NamedPipeline, pipelines

PARAMS = {
    "source": Param(None, type=["null", "string"], title="Made from",
        examples=["downstream", "tidb", "archive"],
        description="downstream (at its checkpoint), tidb, archive (the youngest base rolled forward), or the URL"
        " of a folder that Dumpling wrote. Empty: as [archive] bases-from says."),
    "when_due": Param(default=True, type="boolean", title="Only when it is due",
        description="Not before the youngest base is as old as [archive] bases-every says."),
    "full": Param(default=False, type="boolean", title="Read every table",
        description="Also those that have not changed since the youngest base."),
    "plan_only": Param(default=False, type="boolean", title="Only plan",
        description="Say what would be done, and what hinders it. Nothing is written."),
    "escape_backslash": Param(default=True, type="boolean", title="The dump has backslash escapes",
        description="Dumpling's --escape-backslash."),
}  # fmt: skip


def build(pipeline: NamedPipeline) -> None:
    """The DAG of one pipeline."""

    @dag(
        dag_id=pipeline.dag_id("base"),
        schedule="@hourly",
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=pipeline.tags,
        params=PARAMS,
        default_args=TASK_ERRORS,
        doc_md=__doc__,
    )
    def base() -> None:
        @task
        def plan(params: dict[str, Any] | None = None, run_id: str | None = None) -> str | None:
            from etl.base import tasks
            from etl.task import run_job_task

            return run_job_task(pipeline, "plan", lambda settings: tasks.begin(settings, params or {}, run_id or ""))

        @task
        def work(job: str | None, run_id: str | None = None) -> dict[str, Any]:
            from etl.base import tasks
            from etl.task import run_job_task

            return run_job_task(pipeline, "base", lambda settings: tasks.work(settings, job, run_id or ""))

        work(plan())

    base()


for each in pipelines().values():
    build(each)

"""DAG ``restore_drill``: restoring is tried before it is needed.

Looks every hour whether a drill is due (`[archive] drills-every`, weekly unless it says otherwise). A drill restores
some tables as of a moment, both chosen at random, into databases of their own, verifies them, drops them, and keeps how
long it took. One that fails fails the run: so would a restore. Triggered by hand it tries at once.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from errors.of_tasks import TASK_ERRORS
from etl.settings.pipelines import NamedPipeline, pipelines

PARAMS = {
    "tables": Param(5, type="integer", minimum=1, description="At most so many tables, chosen at random."),
    "max_mb": Param(
        10_000, type="integer", minimum=1,
        description="Tables that have at most about so many MB of rows together; one is taken whatever it has.",
    ),
    "at": Param(
        None, type=["null", "string"],
        description="As of this moment: a TSO or a time (UTC). Empty: any that can be restored, chosen at random.",
    ),
}  # fmt: skip


def build(pipeline: NamedPipeline) -> None:
    """The DAG of one pipeline."""

    @dag(
        dag_id=pipeline.dag_id("restore_drill"),
        schedule=timedelta(hours=1),
        start_date=datetime(2024, 1, 1, tzinfo=UTC),
        max_active_runs=1,
        catchup=False,
        is_paused_upon_creation=False,
        tags=pipeline.tags,
        params=PARAMS,
        default_args=TASK_ERRORS,
        doc_md=__doc__,
    )
    def restore_drill() -> None:
        @task
        def drill(params: dict[str, Any] | None = None, run_id: str | None = None) -> dict[str, Any] | None:
            from etl.drill import tasks
            from etl.task import run_job_task

            return run_job_task(pipeline, "drill", lambda settings: tasks.drill(settings, run_id or "", params or {}))

        drill()

    restore_drill()


for each in pipelines().values():
    build(each)

"""DAG ``verify_continuously``: what was changed is compared again a while later, and every row once in some days.

Slowly, beside everything else: `[verify]` says how many rows and megabytes a second, and in how many days. A run lasts
nine minutes, the next one goes on where it was. Rows that differ at two checkpoints fail the run, and every run until
they are right. Switch it on where TiDB can be read (`[upstream] sql-host`); elsewhere it does nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, task

from errors.of_tasks import TASK_ERRORS
from etl.settings.pipelines import NamedPipeline, pipelines


def build(pipeline: NamedPipeline) -> None:
    """The DAG of one pipeline."""

    @dag(
        dag_id=pipeline.dag_id("verify_continuously"),
        schedule=timedelta(minutes=10),
        start_date=datetime(2024, 1, 1, tzinfo=UTC),
        max_active_runs=1,
        catchup=False,
        is_paused_upon_creation=True,
        tags=pipeline.tags,
        default_args=TASK_ERRORS,
        doc_md=__doc__,
    )
    def verify_continuously() -> None:
        @task
        def watch() -> dict[str, Any]:
            from etl.task import run_job_task
            from etl.verify.watching import watch as work

            return run_job_task(pipeline, "verify_continuously", work)

        watch()

    verify_continuously()


for each in pipelines().values():
    build(each)

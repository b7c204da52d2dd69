"""DAG ``verify_continuously``: what was changed is compared again a while later, and every row once in some days.

Slowly, beside everything else: `[verify]` says how many rows and megabytes a second, and in how many days. A run lasts
nine minutes, the next one goes on where it was. Rows that differ at two checkpoints fail the run, and every run until
they are right. Switch it on where TiDB can be read (`[upstream] sql-host`); elsewhere it does nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import task

from etl.airflow_run import RunTime
from etl.pipeline_dags import each_pipeline
from etl.settings.pipelines import NamedPipeline


def wire(pipeline: NamedPipeline) -> None:
    """The tasks of one pipeline's DAG."""

    @task
    def watch(dag_run: Any = None) -> dict[str, Any]:
        from etl.task import run_job_task
        from etl.verify import watching

        time = RunTime.of(watching.RUN_SECONDS, dag_run)
        return run_job_task(pipeline, "verify_continuously", lambda settings: watching.watch(settings, time.left_s()))

    watch()


each_pipeline("verify_continuously", __doc__, wire, is_paused_upon_creation=True, schedule=timedelta(minutes=10))

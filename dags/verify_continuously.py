"""DAG ``verify_continuously``: what was changed is compared again a while later, and every row once
in some days.

Slowly, beside everything else: `[verify]` says how many rows and megabytes a second, and in how
many days. A run lasts nine minutes, the next one goes on where it was. Rows that differ at two
checkpoints fail the run, and every run until they are right. Switch it on where TiDB can be read
(`[upstream] sql-host`); elsewhere it does nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import task

from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.tasks.airflow_run import RunDeadline
from sluice.etl.tasks.dag_factory import dag_per_pipeline


def wire(pipeline: NamedPipeline) -> None:
    """The tasks of one pipeline's DAG."""

    @task
    def watch(dag_run: Any = None) -> dict[str, Any]:
        from sluice.etl.tasks.airflow_task import run_job_task
        from sluice.etl.verify import continuous_task as watching

        time = RunDeadline.from_dag_run(watching.RUN_S, dag_run)
        return run_job_task(
            pipeline,
            "verify_continuously",
            lambda settings: watching.run_continuous_task(settings, time.left_s()),
        )

    watch()


dag_per_pipeline(
    "verify_continuously",
    __doc__,
    wire,
    is_paused_upon_creation=True,
    schedule=timedelta(minutes=10),
)

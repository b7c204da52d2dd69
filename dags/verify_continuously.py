"""Define the DAG ``verify_continuously``: compare changed rows later, and every row in some days.

It runs slowly, beside everything else: `[verify]` sets how many rows and megabytes a second it
reads, and in how many days it compares every row. A run lasts nine minutes, the next one continues
where it ended. Rows that differ at two checkpoints fail the run, and every run until they are
right. Switch it on where TiDB can be read (`[upstream] sql-host`); elsewhere it does nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import task

from sluice.airflow.agent_client import call_task
from sluice.airflow.dag_factory import dag_per_pipeline
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.tasks.airflow_run import run_began_s


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""

    @task
    def watch(dag_run: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = call_task(
            pipeline, "verify_continuously", began_s=run_began_s(dag_run)
        )
        return found

    watch()


dag_per_pipeline(
    "verify_continuously",
    __doc__,
    wire,
    is_paused_upon_creation=True,
    schedule=lambda _: timedelta(minutes=10),
)

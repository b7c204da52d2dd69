"""Define the DAG ``archive``: move what is landed into the archive, beside `replicate`.

It runs continuously, one run at a time. `archive` makes a pass every `[archive] every` until the
run's time is up: landed windows become archive segments, for restoring and as typed columns. Then
`compact` merges many small files into few large ones, and `retain` removes what the settings no
longer keep. Killed tasks are started again and continue where the archive ends. When a task needs
an operator, the last line of its log has the hint, and the DAG pauses. Nothing is lost meanwhile,
for the relay log keeps what isn't archived.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, task

from sluice.airflow.agent_client import call_task
from sluice.airflow.dag_factory import dag_per_pipeline
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.tasks.airflow_run import run_began_s

PARAMS = {
    "run_seconds": Param(
        900,
        type="integer",
        minimum=1,
        description=(
            "How long passes are made, one after another, from when the run began, before files are"
            " compacted and removed."
        ),
    ),
}


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG."""

    @task(task_id="archive")
    def pass_after_pass(
        params: dict[str, Any] | None = None, dag_run: Any = None
    ) -> dict[str, Any]:
        found: dict[str, Any] = call_task(
            pipeline,
            "archive",
            run_seconds=(params or {})["run_seconds"],
            began_s=run_began_s(dag_run),
        )
        return found

    @task
    def compact() -> dict[str, Any]:
        found: dict[str, Any] = call_task(pipeline, "compact")
        return found

    @task
    def retain() -> dict[str, Any]:
        found: dict[str, Any] = call_task(pipeline, "retain")
        return found

    pass_after_pass() >> compact() >> retain()


dag_per_pipeline(
    "archive", __doc__, wire, params=PARAMS, schedule=lambda _: "@continuous",
    max_consecutive_failed_dag_runs=1,  # an operator has to act first: the DAG pauses
)  # fmt: skip

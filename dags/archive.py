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

from sluice.airflow.dag_factory import dag_per_pipeline
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.tasks.airflow_run import RunDeadline

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
        from sluice.etl.tasks import archive as tasks
        from sluice.etl.tasks.airflow_task import run_task

        time = RunDeadline.from_dag_run((params or {})["run_seconds"], dag_run)
        return run_task(
            pipeline,
            "archive",
            lambda settings, got_on: tasks.archive(settings, time.left_s(), got_on),
        )

    @task
    def compact() -> dict[str, Any]:
        from sluice.etl.tasks import archive as tasks
        from sluice.etl.tasks.airflow_task import run_task

        return run_task(pipeline, "compact", tasks.compact)

    @task
    def retain() -> dict[str, Any]:
        from sluice.etl.tasks import retain as tasks
        from sluice.etl.tasks.airflow_task import run_task

        return run_task(pipeline, "retain", tasks.retain_or_say_why)

    pass_after_pass() >> compact() >> retain()


dag_per_pipeline(
    "archive", __doc__, wire, params=PARAMS, schedule=lambda _: "@continuous",
    max_consecutive_failed_dag_runs=1,  # an operator has to act first: the DAG pauses
)  # fmt: skip

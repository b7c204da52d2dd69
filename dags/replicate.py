"""DAG ``replicate``: land windows in the relay log and apply them downstream, continuously.

One run at a time. In a run `land` and `apply` work side by side, joined only by the relay log, and each drains windows
until the run's time is up; then the next run begins. Killed tasks are started again at once: both continue from what
is durable. A task that can't go on before somebody acts fails at once, the last line of its log says what to do, and
when the other one's time is up the DAG pauses; unpause it, or `sluice resume`, when that is done.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Param, dag, task

from errors.of_tasks import TASK_ERRORS
from etl.settings.pipelines import NamedPipeline, pipelines

PARAMS = {
    "run_seconds": Param(
        300, type="integer", minimum=1, description="How long one run drains windows before the next begins."
    ),
    "mode": Param(
        "as in sluice.toml",
        type="string",
        enum=["as in sluice.toml", "atomic", "parallel"],
        description="How this run applies.",
    ),
    "until": Param(
        None,
        type=["null", "string"],
        description="Where this run stops applying: a TSO or a time (UTC), exactly; empty: nowhere. "
        "To have later runs stop there too, use the DAG `operate`.",
    ),
}


def build(pipeline: NamedPipeline) -> None:
    """The DAG of one pipeline."""

    @dag(
        dag_id=pipeline.dag_id("replicate"),
        schedule="@continuous",
        start_date=datetime(
            2024, 1, 1, tzinfo=UTC
        ),  # without one, Airflow gives every run the first run's date and skips it
        max_active_runs=1,
        catchup=False,
        is_paused_upon_creation=False,
        tags=pipeline.tags,
        params=PARAMS,
        default_args=TASK_ERRORS,
        max_consecutive_failed_dag_runs=1,  # somebody has to act first: the DAG pauses
        doc_md=__doc__,
    )
    def replicate() -> None:
        @task
        def land(params: dict[str, Any] | None = None) -> dict[str, Any]:
            from etl import run_land
            from etl.task import run_task

            seconds = (params or {})["run_seconds"]
            return run_task(
                pipeline,
                "land",
                lambda settings, got_on: run_land(settings, run_seconds=seconds, on_window=got_on).as_dict(),
            )

        @task
        def apply(params: dict[str, Any] | None = None) -> dict[str, Any]:
            from etl import operate, run_apply
            from etl.task import run_task

            wanted = params or {}

            def work(settings: Any, got_on: Any) -> dict[str, Any]:
                until_ts = operate.parse_moment(wanted["until"]) if wanted["until"] else None
                settings = operate.for_run(settings, wanted["mode"])
                return run_apply(
                    settings, run_seconds=wanted["run_seconds"], until_ts=until_ts, on_batch=got_on
                ).as_dict()

            return run_task(pipeline, "apply", work)

        land()
        apply()

    replicate()


for each in pipelines().values():
    build(each)

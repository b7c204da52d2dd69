"""Define the DAG ``replicate``: land windows in the relay log and apply them, continuously.

One run at a time. In a run `land` and `apply` work side by side, joined only by the relay log, and
both drain windows until the run's time is up, counted from when the run began; then the next run
begins. The work is done by worker processes that outlive the run, and the next run's tasks reattach
to them (`sluice.etl.tasks.worker`). Tasks and processes that are killed are started again at once:
they continue from what is durable. A task that needs an operator has the hint in the last line of
its log. It waits 20 s for `sluice resume`, then it fails, the other one ends within ten more, and
the DAG pauses; unpause it, or `sluice resume`, when that is done.

With `replication = "service"` in the settings `sluice replicate` lands and applies. Then the only
task, `watch`, fails when that doesn't get on.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, task

from sluice.airflow.agent_client import call_task
from sluice.airflow.dag_factory import dag_per_pipeline, moment_params
from sluice.airflow.lineage import report_lineage
from sluice.airflow.operators import job_form
from sluice.etl.settings.pauses import span_ms
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.tasks.airflow_run import run_began_s

AS_SET = "as in sluice.toml"
PARAMS = {
    "run_seconds": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        description=(
            "How long one run drains windows, from when it began, before the next begins. Empty:"
            " `[airflow] run-time`."
        ),
    ),
    "mode": Param(
        AS_SET,
        type="string",
        enum=[AS_SET, "atomic", "parallel"],
        description="How this run applies.",
    ),
    **moment_params(
        "until",
        "Until when",
        "Where this run stops applying: a TSO or a time (UTC), exactly; empty: nowhere. To have"
        " later runs stop there too, use the DAG `operate`.",
    ),
}


def _run_seconds(pipeline: NamedPipeline, params: dict[str, Any] | None) -> float:
    given = (params or {}).get("run_seconds")
    return float(given or span_ms(pipeline.airflow.run_time) / 1000)


def wire(pipeline: NamedPipeline) -> None:
    """Build the tasks of one pipeline's DAG: two that work, or one that watches the service."""
    if pipeline.airflow.replication == "service":
        _watch(pipeline)
    else:
        _land_and_apply(pipeline)


def _watch(pipeline: NamedPipeline) -> None:
    @task
    def watch(params: dict[str, Any] | None = None, dag_run: Any = None) -> None:
        call_task(
            pipeline,
            "watch_replication",
            run_seconds=_run_seconds(pipeline, params),
            began_s=run_began_s(dag_run),
        )

    report_lineage(watch(), pipeline)


def _land_and_apply(pipeline: NamedPipeline) -> None:

    @task
    def land(params: dict[str, Any] | None = None, dag_run: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = call_task(
            pipeline,
            "land",
            run_seconds=_run_seconds(pipeline, params),
            began_s=run_began_s(dag_run),
        )
        return found

    @task
    def apply(params: dict[str, Any] | None = None, dag_run: Any = None) -> dict[str, Any]:
        wanted = job_form(params or {})
        found: dict[str, Any] = call_task(
            pipeline,
            "apply",
            run_seconds=_run_seconds(pipeline, params),
            began_s=run_began_s(dag_run),
            mode=None if wanted["mode"] == AS_SET else wanted["mode"],
            until=wanted["until"],
        )
        return found

    land()
    report_lineage(apply(), pipeline)


dag_per_pipeline(
    "replicate", __doc__, wire, params=PARAMS, schedule=lambda _: "@continuous",
    max_consecutive_failed_dag_runs=1,  # an operator has to act first: the DAG pauses
)  # fmt: skip

"""DAG ``verify``: whether both sides are equal, proved at a live checkpoint, beside replication and without a pause.

It looks once an hour, and compares all tables when the last time is as long ago as `[verify] every` says. Triggered
with a form, it compares what the form says at once. `plan` writes the job down, `compare` does it: killed, or triggered
again with the same values, it goes on with the tables that are left; `sluice jobs` shows how far it is, pauses it, and
gives it up. Rows that differ fail the run, which names them.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag, task

from errors.of_tasks import TASK_ERRORS
from etl.settings.pipelines import NamedPipeline, pipelines

PARAMS = {
    "tables": Param([], type="array", items={"type": "string"}, title="Tables",
        description="schema.table upstream, one a line; * and ? stand for others. Empty: all."),
    "how": Param("auto", type="string", enum=["auto", "upstream", "archive"], title="Compared with",
        description="upstream: TiDB as it was at the checkpoint; archive: what Spark computes from base and archive;"
        " auto: TiDB if it can be asked."),
    "when_due": Param(default=True, type="boolean", title="Only when it is due",
        description="Not before the last time is as long ago as [verify] every says."),
}  # fmt: skip


def build(pipeline: NamedPipeline) -> None:
    """The DAG of one pipeline."""

    @dag(
        dag_id=pipeline.dag_id("verify"),
        schedule="@hourly",
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=pipeline.tags,
        params=PARAMS,
        default_args=TASK_ERRORS,
        doc_md=__doc__,
    )
    def verify() -> None:
        @task
        def plan(params: dict[str, Any] | None = None, run_id: str | None = None) -> str | None:
            from etl.task import run_job_task
            from etl.verify import tasks

            return run_job_task(pipeline, "plan", lambda settings: tasks.begin(settings, params or {}, run_id or ""))

        @task
        def compare(job: str | None, run_id: str | None = None) -> dict[str, Any]:
            from etl.task import run_job_task
            from etl.verify import tasks

            return run_job_task(pipeline, "verify", lambda settings: tasks.work(settings, job, run_id or ""))

        compare(plan())

    verify()


for each in pipelines().values():
    build(each)

"""DAG ``quality``: is the data what it should be?

Looks at the suites that `sluice quality init` has proposed and people have edited, by Great Expectations: on the
downstream at its checkpoint while replication goes on, on the lake as of a moment, or on a copy, and on the replication
itself. What is found is in the Data Docs. Looks by itself as often, and at the hours, as `[quality]` says; an
expectation's severity says whether it warns, fails the run, or pauses applying as well.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from errors.of_tasks import TASK_ERRORS
from etl.settings.pipelines import NamedPipeline, pipelines

PARAMS = {
    "on": Param("downstream", enum=["downstream", "lake", "copy"], type="string", description="What to look at."),
    "suites": Param(
        [], type="array", items={"type": "string"},
        description="Only these, a line each: schema.table or replication, also with * and ?. Empty: all.",
    ),
    "as_of": Param(
        None, type=["null", "string"],
        description="Of the lake: as of this moment, a TSO or a time (UTC). Empty: where the archive ends.",
    ),
    "copy": Param(
        None, type=["null", "string"],
        description="Of a copy: a settings file (TOML) whose [downstream] says where it is.",
    ),
}  # fmt: skip


def build(pipeline: NamedPipeline) -> None:
    """The DAG of one pipeline."""

    @dag(
        dag_id=pipeline.dag_id("quality"),
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
    def quality() -> None:
        @task
        def look(params: dict[str, Any] | None = None, run_id: str | None = None) -> dict[str, Any] | None:
            from etl.task import run_job_task
            from expectations import tasks

            return run_job_task(pipeline, "quality", lambda settings: tasks.look(settings, run_id or "", params or {}))

        look()

    quality()


for each in pipelines().values():
    build(each)

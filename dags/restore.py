"""DAG ``restore``: tables as they were at a moment, from the archive, beside what is there now.

Trigger it with the moment. `plan` says what will be done and what hinders it; `work` loads the nearest base, applies
what was committed after it, and compares the result with what Spark computes by itself. It is a job: killed, or
triggered again with the same values, it goes on with what is left; `sluice jobs` shows how far it is, pauses it, and
gives it up: then nothing of it stays. With a folder, tables become files there; that is no job, and goes on, too.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag, task

from errors.of_tasks import TASK_ERRORS
from etl.settings.pipelines import NamedPipeline, pipelines

NAMES = {"type": ["null", "array"], "items": {"type": "string", "pattern": "^\\s*$|^[^.]+\\..+$"}}
PLACE = {"type": ["null", "string"], "section": "To another server"}
FILES = {"section": "Into files, not a database"}


PARAMS = {
    "until": Param(None, type=["null", "string"], title="Until when",
        description="Everything committed until then is in. A time with its zone, 2026-11-22T12:00:00+01:00, a "
        "TSO, or before:TSO, which is right before that commit (see sluice find). Empty: all that is landed."),
    "plan_only": Param(default=True, type="boolean", title="Only plan",
        description="Say what would be done, how long it takes, and what hinders it. Nothing is written."),
    "tables": Param(None, **NAMES, title="Tables",
        description="Names that they had then, such as shop.orders or shop.*, one a line. Empty: all."),
    "into": Param(None, type=["null", "string"], title="Names of the databases", pattern="\\{schema\\}",
        description="Empty: {schema}_restored on the pipeline's server, and the upstream's names on another one."),
    "replacing": Param(None, **NAMES, title="Tables that are replaced",
        description="Typed out as they are called where it is restored to, one a line. Others that are there stop it."),
    "verify": Param(default=True, type="boolean", title="Verify",
        description="Compare every table with the state that Spark computes independently."),
    "connection": Param(None, **PLACE, title="Airflow connection",
        description="Its host, port, login and password are the server."),
    "target": Param(None, **PLACE, title="Or a settings file",
        description="A path that workers reach; its [downstream] is the server. No passwords in it."),
    "folder": Param(None, type=["null", "string"], **FILES, title="Folder",
        description="A path that workers reach. Rows, CREATE TABLE and a manifest are written there."),
    "format": Param("parquet", enum=["parquet", "csv", "sql"], **FILES, title="Format of the rows",
        description="Parquet, CSV, or SQL that a server reads."),
    "beside": Param(default=False, type="boolean", **FILES, title="Other files may be in the folder",
        description="Without it, a folder that holds something stops it."),
}  # fmt: skip


def build(pipeline: NamedPipeline) -> None:
    """The DAG of one pipeline."""

    @dag(
        dag_id=pipeline.dag_id("restore"),
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,
        tags=pipeline.tags,
        params=PARAMS,
        default_args=TASK_ERRORS,
        doc_md=__doc__,
    )
    def restore() -> None:
        @task(multiple_outputs=True)
        def plan(params: dict[str, Any] | None = None, run_id: str | None = None) -> dict[str, Any]:
            from etl.restore import tasks
            from etl.task import run_job_task

            return run_job_task(pipeline, "plan", lambda settings: tasks.begin(settings, params or {}, run_id or ""))

        @task
        def work(job: str | None, files: dict[str, Any] | None, run_id: str | None = None) -> dict[str, Any]:
            from etl.restore import tasks
            from etl.task import run_job_task

            if files is not None:
                return run_job_task(pipeline, "restore", lambda settings: tasks.into_files(settings, files))
            return run_job_task(pipeline, "restore", lambda settings: tasks.work(settings, job, run_id or ""))

        planned = plan()
        work(planned["job"], planned["files"])

    restore()


for each in pipelines().values():
    build(each)

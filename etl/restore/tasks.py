"""A restore as Airflow's tasks: one plans, one does it, beside the DAG `replicate`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from etl.asof import Run
from etl.restore.errors import RestoreError
from etl.restore.files_plan import FilesPlan, plan_files
from etl.restore.form import files_request_of, request_of
from etl.restore.into_files import FilesRequest, restore_files
from etl.restore.jobs import ask_for, begun, run_restore
from etl.restore.plan import RestorePlan
from etl.restore.planning import plan_restore
from etl.settings import Settings
from relay.jobs import DONE, Jobs, NotDoneError, Runner, saying

__all__ = ["NotDoneError", "begin", "into_files", "work"]

log = logging.getLogger("sluice.restore")


def begin(settings: Settings, said: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Plan what the form says, see `etl.restore.form`; unless `plan_only` make a job of it, or find the one that was
    asked for so and isn't over: {"plan": text, "job": its id or None, "files": what goes into files, or None}. Raises
    RestoreError for what hinders it, and as `ask_for`.
    """
    files = files_request_of(settings, said)
    if files is not None:
        text = _told(plan_files(settings, files), plan_only=said["plan_only"])
        return {"plan": text, "job": None, "files": None if said["plan_only"] else files.to_json()}
    request = request_of(said)
    job = begun(settings, request)
    kept = job.plan() if job is not None else None
    plan = plan_restore(settings, request) if kept is None else RestorePlan.from_json(kept)
    text = _told(plan, plan_only=said["plan_only"])
    if said["plan_only"]:
        return {"plan": text, "job": None, "files": None}
    return {"plan": text, "job": ask_for(settings, request, f"airflow {run_id}").id, "files": None}


def _told(plan: RestorePlan | FilesPlan, *, plan_only: bool) -> str:
    """The plan as it was logged. Raises RestoreError for what hinders it."""
    text = "\n".join(plan.lines())
    log.info("the plan%s:\n%s", ", of which nothing is done" if plan_only else "", text)
    if plan.problems:
        raise RestoreError("\n".join(plan.problems))
    return text


def into_files(settings: Settings, files: Mapping[str, Any], *, run: Run | None = None) -> dict[str, Any]:
    """Have the files that `begin` planned, or go on with them. `run`: as `restore_files`, which it raises as."""
    done = restore_files(settings, FilesRequest.from_json(files), run=run)
    return {"folder": str(done.folder), "tables": len(done.tables), "rows": done.rows, "made": done.made}


def work(settings: Settings, name: str | None, run_id: str) -> dict[str, Any]:
    """Do the job, or go on with it: its result; nothing of no job. Raises NotDoneError if it was paused or given up
    meanwhile, and as `run_restore`.
    """
    if name is None:
        return {}
    job = Jobs.of(settings.open_relay()).get(name)
    with saying(job, log):
        summary = run_restore(settings, job, Runner(f"Airflow, run {run_id}"))
    for warning in summary.warnings:
        log.warning("%s", warning)
    if summary.state != DONE:
        raise NotDoneError.of(name, summary.state)
    return job.status().to_json()["result"] or {}

"""A restore as Airflow's tasks: one plans, one does it, beside the DAG `replicate`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from etl.asof import Run
from etl.restore.errors import RestoreError
from etl.restore.files_jobs import FILES_KIND, ask_for_files, begun_files, run_files
from etl.restore.files_plan import FilesPlan, plan_files
from etl.restore.form import check_allowed, files_request_of, request_of
from etl.restore.jobs import ask_for, begun, run_restore
from etl.restore.plan import RestorePlan
from etl.restore.planning import plan_restore
from etl.settings import Settings
from relay.jobs import DONE, Job, Jobs, NotDoneError, Runner, saying

__all__ = ["NotDoneError", "begin", "work"]

log = logging.getLogger("sluice.restore")


def begin(settings: Settings, said: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Plan what the form says, see `etl.restore.form`; unless `plan_only` make a job of it, or find the one that was
    asked for so and isn't over: {"plan": text, "job": its id or None}. Raises RestoreError for what hinders it, and as
    `ask_for`.
    """
    check_allowed(settings, said)
    by = f"airflow {run_id}"
    files = files_request_of(said)
    if files is not None:
        kept = _kept(begun_files(settings, files))
        text = _told(FilesPlan.from_json(kept) if kept else plan_files(settings, files), plan_only=said["plan_only"])
        return {"plan": text, "job": None if said["plan_only"] else ask_for_files(settings, files, by).id}
    request = request_of(said)
    kept = _kept(begun(settings, request))
    text = _told(RestorePlan.from_json(kept) if kept else plan_restore(settings, request), plan_only=said["plan_only"])
    return {"plan": text, "job": None if said["plan_only"] else ask_for(settings, request, by).id}


def _kept(job: Job | None) -> dict[str, Any] | None:
    return job.plan() if job is not None else None


def _told(plan: RestorePlan | FilesPlan, *, plan_only: bool) -> str:
    """The plan as it was logged. Raises RestoreError for what hinders it."""
    text = "\n".join(plan.lines())
    log.info("the plan%s:\n%s", ", of which nothing is done" if plan_only else "", text)
    if plan.problems:
        raise RestoreError("\n".join(plan.problems))
    return text


def work(settings: Settings, name: str | None, run_id: str, *, compute: Run | None = None) -> dict[str, Any]:
    """Do the job, or go on with it: its result; nothing of no job. `compute`: as `run_files`. Raises NotDoneError if it
    was paused or given up meanwhile, and as `run_restore` and `run_files`.
    """
    if name is None:
        return {}
    job = Jobs.of(settings.open_relay()).get(name)
    runner = Runner(f"Airflow, run {run_id}")
    with saying(job, log):
        if job.spec.kind == FILES_KIND:
            state = run_files(settings, job, runner, compute=compute).state
        else:
            summary = run_restore(settings, job, runner)
            state = summary.state
            for warning in summary.warnings:
                log.warning("%s", warning)
    if state != DONE:
        raise NotDoneError.of(name, state)
    return job.status().to_json()["result"] or {}

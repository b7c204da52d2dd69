"""A restore as Airflow's tasks: one plans, one does it, beside the DAG `replicate`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sluice.etl.history.as_of import PlanExecutor
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.files_jobs import (
    FILES_KIND,
    create_or_resume_files,
    find_open_files_job,
    run_files,
)
from sluice.etl.restore.files_plan import FilesPlan, plan_files
from sluice.etl.restore.form import (
    check_allowed,
    files_request_from_form,
    restore_request_from_form,
)
from sluice.etl.restore.jobs import create_or_resume, find_open_job, run_restore
from sluice.etl.restore.plan import RestorePlan
from sluice.etl.restore.planning import plan_restore
from sluice.etl.settings import Settings
from sluice.relay.jobs import DONE, Job, Jobs, NotDoneError, Runner, log_progress

__all__ = ["NotDoneError", "begin", "work"]

log = logging.getLogger("sluice.restore")


def begin(settings: Settings, said: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Plan what the form says, see `sluice.etl.restore.form`.

    Unless `plan_only` make a job of it, or find the one that was asked for so and isn't over:
    {"plan": text, "job": its id or None}. Raises RestoreError for what hinders it, and as
    `create_or_resume`.
    """
    check_allowed(settings, said)
    by = f"airflow {run_id}"
    files = files_request_from_form(said)
    if files is not None:
        kept = _saved_plan(find_open_files_job(settings, files))
        text = _logged_plan(
            FilesPlan.from_json(kept) if kept else plan_files(settings, files),
            plan_only=said["plan_only"],
        )
        return {
            "plan": text,
            "job": None if said["plan_only"] else create_or_resume_files(settings, files, by).id,
        }
    request = restore_request_from_form(said)
    kept = _saved_plan(find_open_job(settings, request))
    text = _logged_plan(
        RestorePlan.from_json(kept) if kept else plan_restore(settings, request),
        plan_only=said["plan_only"],
    )
    return {
        "plan": text,
        "job": None if said["plan_only"] else create_or_resume(settings, request, by).id,
    }


def _saved_plan(job: Job | None) -> dict[str, Any] | None:
    return job.plan() if job is not None else None


def _logged_plan(plan: RestorePlan | FilesPlan, *, plan_only: bool) -> str:
    """The plan as it was logged. Raises RestoreError for what hinders it."""
    text = "\n".join(plan.lines())
    log.info("the plan%s:\n%s", ", of which nothing is done" if plan_only else "", text)
    if plan.problems:
        raise RestoreError("\n".join(plan.problems))
    return text


def work(
    settings: Settings, name: str | None, run_id: str, *, compute: PlanExecutor | None = None
) -> dict[str, Any]:
    """Do the job, or go on with it: its result; nothing of no job.

    `compute`: as `run_files`. Raises NotDoneError if it was paused or given up meanwhile, and as
    `run_restore` and `run_files`.
    """
    if name is None:
        return {}
    job = Jobs.for_pipeline(settings.open_relay()).get(name)
    runner = Runner(f"Airflow, run {run_id}")
    with log_progress(job, log):
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

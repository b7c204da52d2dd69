"""A restore as Airflow's tasks: one plans, one does it, beside the DAG `replicate`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from etl.restore.errors import RestoreError
from etl.restore.form import request_of
from etl.restore.jobs import ask_for, begun, run_restore
from etl.restore.plan import RestorePlan
from etl.restore.planning import plan_restore
from etl.settings import Settings
from relay.jobs import DONE, Jobs, NotDoneError, Runner, saying

__all__ = ["NotDoneError", "begin", "work"]

log = logging.getLogger("sluice.restore")


def begin(settings: Settings, said: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Plan what the form says, see `etl.restore.form`; unless `plan_only` make a job of it, or find the one that was
    asked for so and isn't over: {"plan": text, "job": its id or None}. Raises RestoreError for what hinders it, and as
    `ask_for`.
    """
    request = request_of(said)
    job = begun(settings, request)
    kept = job.plan() if job is not None else None
    plan = plan_restore(settings, request) if kept is None else RestorePlan.from_json(kept)
    text = "\n".join(plan.lines())
    log.info("the plan%s:\n%s", ", of which nothing is done" if said["plan_only"] else "", text)
    if plan.problems:
        raise RestoreError("\n".join(plan.problems))
    if said["plan_only"]:
        return {"plan": text, "job": None}
    return {"plan": text, "job": ask_for(settings, request, f"airflow {run_id}").id}


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

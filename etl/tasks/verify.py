"""Verification as Airflow's tasks: one writes the job down, one does it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from sluice.etl.settings import Settings
from sluice.etl.tasks.airflow_run import is_scheduled
from sluice.etl.verify.errors import UnequalError
from sluice.etl.verify.request import AUTO, VerifyRequest
from sluice.etl.verify.run import KIND, create_verify, run_verify
from sluice.relay.jobs import DONE, Jobs, NotDoneError, Runner
from sluice.relay.verification_log import CONTINUOUS, Verifications

__all__ = ["NotDoneError", "begin", "work"]

log = logging.getLogger("sluice.verify")

_MAX_JOBS_CHECKED = 50


def begin(settings: Settings, said: Mapping[str, Any], run_id: str) -> str | None:
    """Make a job of what the form says, or find the one that was asked for so and isn't over: its
    id. None if nothing is to be compared: Airflow's clock began the run, and the last time isn't as
    long ago as `[verify] every` says. Raises as `create_verify`.
    """
    if is_scheduled(run_id) and (why := not_due(settings)):
        log.info("%s", why)
        return None
    tables = tuple(one.strip() for one in said["tables"] or () if one.strip())
    request = VerifyRequest(tables, said["how"] or AUTO)
    jobs = Jobs.for_pipeline(settings.open_relay())
    if (
        begun := jobs.find_open(KIND, lambda asked: asked == request.to_json(), planned=True)
    ) is not None:
        log.info("going on with the job %s", begun.id)
        return begun.id
    return create_verify(settings, request, f"airflow {run_id}").id


def work(settings: Settings, name: str | None, run_id: str) -> dict[str, Any]:
    """Do the job, or go on with it: its result; nothing of no job.

    Raises UnequalError if both sides aren't equal, NotDoneError if it was paused or given up
    meanwhile, and as `run_verify`.
    """
    if name is None:
        return {}
    summary = run_verify(
        settings, name, Runner(f"Airflow, run {run_id}", group=f"airflow {run_id}")
    )
    if summary.state != DONE:
        raise NotDoneError.of(name, summary.state)
    if not summary.equal:
        raise UnequalError.of(summary)
    return summary.totals()


def not_due(settings: Settings) -> str:
    """Why nothing is to be compared now by the clock; "" if it is."""
    every_ms = settings.verify.every_ms
    if not every_ms:
        return "both sides are compared only when asked for: [verify] every is empty"
    runs = Verifications(settings.open_relay()).runs(_MAX_JOBS_CHECKED)
    last = next((run for run in runs if run.how != CONTINUOUS and run.state == DONE), None)
    if last is not None and last.at_ms + every_ms > time.time() * 1000:
        return (
            f"{last.job} compared both sides less than [verify] every = {settings.verify.every} ago"
        )
    return ""

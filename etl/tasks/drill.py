"""A drill as a task of Airflow's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sluice.etl.restore.drill.errors import DrillError
from sluice.etl.restore.drill.job import RestoreTestRequest, create_or_resume, is_due, run_drill
from sluice.etl.settings import Settings
from sluice.etl.tasks.airflow_run import is_scheduled
from sluice.relay.jobs import DONE, Runner
from sluice.tidb import tso

__all__ = ["drill"]

log = logging.getLogger("sluice.drill")


def drill(settings: Settings, run_id: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """Try to restore what the form says (`tables`, `max_mb`, `at`).

    In a run that Airflow's clock began only if it is due, and there is something to restore. What
    was tried, None if nothing was. Raises MomentError, and as `run_drill`.
    """
    if is_scheduled(run_id) and not is_due(settings):
        every = settings.archive.drills_every
        log.info(
            "no drill: the last one is younger than [archive] drills-every (%s), or there is no"
            " snapshot yet",
            every,
        )
        return None
    job = create_or_resume(settings, _request_from_form(asked), f"airflow {run_id}")
    done = run_drill(settings, job, Runner(f"Airflow's task drill, run {run_id}"))
    if done.state != DONE:
        raise DrillError(
            f"the drill {job.id} is {done.state}, as was ordered", hint="trigger the DAG again"
        )
    return asdict(done)


def _request_from_form(asked: Mapping[str, Any]) -> RestoreTestRequest:
    usual = RestoreTestRequest()
    return RestoreTestRequest(
        int(asked.get("tables") or usual.tables),
        int(asked["max_mb"]) * 1_000_000 if asked.get("max_mb") else usual.max_bytes,
        tso.parse_moment(asked["at"]) if asked.get("at") else None,
    )

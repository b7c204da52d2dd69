"""A snapshot as Airflow's tasks: one plans, one makes it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from sluice.etl.copy import DumplingOptions
from sluice.etl.history.snapshots.errors import SnapshotError
from sluice.etl.history.snapshots.preflight import abbreviate_problems
from sluice.etl.history.snapshots.request import AUTO, SnapshotRequest
from sluice.etl.history.snapshots.run import KIND, create_snapshot, plan_snapshot, run_snapshot
from sluice.etl.settings import Settings
from sluice.etl.tasks.airflow_run import is_scheduled
from sluice.relay.archive import Archive
from sluice.relay.jobs import DONE, Jobs, NotDoneError, Runner
from sluice.tidb import tso

__all__ = ["NotDoneError", "begin", "work"]

log = logging.getLogger("sluice.snapshot")


def begin(settings: Settings, said: Mapping[str, Any], run_id: str) -> str | None:
    """Plan what the form says.

    Unless `plan_only` make a job of it, or find the one that was asked for so and isn't over: its
    id. None if nothing is to be made: Airflow's clock began the run, and the youngest snapshot is
    younger than `[archive] snapshots-every`. Raises as `create_snapshot`.
    """
    if is_scheduled(run_id) and (why := not_due(settings)):
        log.info("%s", why)
        return None
    wish = SnapshotRequest.parse(
        said["source"] or settings.archive.snapshots_from or AUTO, full=said["full"],
        options=DumplingOptions(escapes=said["escape_backslash"]),
    )  # fmt: skip
    jobs = Jobs.for_pipeline(settings.open_relay())
    is_same = lambda asked: wish.source == AUTO or asked == wish.to_json()  # noqa: E731
    if not said["plan_only"] and (begun := jobs.find_open(KIND, is_same, planned=True)) is not None:
        log.info("going on with the job %s", begun.id)
        return begun.id
    plan = plan_snapshot(settings, wish)
    log.info("the plan:\n%s", "\n".join(plan.lines()))
    if plan.problems:
        raise SnapshotError(abbreviate_problems(plan.problems))
    return None if said["plan_only"] else create_snapshot(settings, wish, f"airflow {run_id}").id


def work(settings: Settings, name: str | None, run_id: str) -> dict[str, Any]:
    """Do the job, or go on with it: its result; nothing of no job.

    Raises NotDoneError if it was paused or given up meanwhile, and as `run_snapshot`.
    """
    if name is None:
        return {}
    summary = run_snapshot(
        settings, name, Runner(f"Airflow, run {run_id}", group=f"airflow {run_id}")
    )
    if summary.state != DONE:
        raise NotDoneError.of(name, summary.state)
    return summary.to_json()


def not_due(settings: Settings) -> str:
    """Why no snapshot is to be made now by the clock; "" if one is."""
    every_ms = settings.archive.snapshots_every_ms
    if not every_ms:
        return "snapshots are made only when asked for: [archive] snapshots-every is empty"
    archive = Archive.open(settings.archive_url)
    if archive.first() is None:
        return "nothing is archived yet, so no snapshot is of use"
    youngest = archive.snapshots.latest(2**63 - 1)
    if youngest is not None and tso.physical_ms(youngest.ts) + every_ms > time.time() * 1000:
        return (
            f"the snapshot {youngest.id} is younger than [archive] snapshots-every ="
            f" {settings.archive.snapshots_every}"
        )
    return ""

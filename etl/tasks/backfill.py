"""A backfill as Airflow's tasks: one plans, one does it, beside the DAG `replicate`, which writes
the chunks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sluice.errors import SluiceError
from sluice.etl.copy.backfill.errors import BackfillError
from sluice.etl.copy.backfill.request import BackfillRequest
from sluice.etl.copy.backfill.run import KIND, create_backfill, plan_backfill, run_backfill
from sluice.etl.copy.form import names_from_lines
from sluice.etl.settings import Settings
from sluice.relay.jobs import DONE, Jobs, NotDoneError, Runner, log_progress

__all__ = ["NotDoneError", "RowsDifferError", "begin", "work"]

log = logging.getLogger("sluice.backfill")


class RowsDifferError(SluiceError):
    """Rows are compared, and aren't the same on both sides."""

    hint = (
        "trigger the DAG with the mode replace for these tables, or look at how they came to differ"
        " first"
    )


def begin(settings: Settings, said: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Plan what the form says.

    Unless `plan_only` make a job of it, or find the one that was asked for so and isn't over:
    {"plan": JSON values, "job": its id or None}. Raises as `create_backfill`.
    """
    request = BackfillRequest(
        names_from_lines(said["tables"]),
        said["where"] or "",
        said["from_key"] or "",
        said["to_key"] or "",
        said["mode"],
        said["rows_per_second"] or 0,
    )
    request.check()
    is_same = lambda asked: asked == request.to_json()  # noqa: E731
    if (
        not said["plan_only"]
        and (begun := _jobs(settings).find_open(KIND, is_same, planned=True)) is not None
    ):
        log.info("going on with the job %s, which was asked for the same", begun.id)
        return {"plan": begun.plan(), "job": begun.id}
    plan = plan_backfill(settings, request)
    for table in plan.tables:
        log.info(
            "%s %s to %s: about %d rows, %d bytes",
            plan.mode,
            table.name,
            table.target,
            table.rows,
            table.bytes,
        )
    for note in plan.notes:
        log.info("note: %s", note)
    if plan.problems:
        raise BackfillError("\n".join(plan.problems))
    if said["plan_only"]:
        return {"plan": plan.to_json(), "job": None}
    job = create_backfill(settings, request, f"airflow {run_id}")
    return {"plan": plan.to_json(), "job": job.id}


def work(settings: Settings, name: str | None, run_id: str) -> dict[str, Any]:
    """Do the job, or go on with it: its result; nothing of no job.

    Raises NotDoneError if it was paused or given up meanwhile, DiffersError if rows were compared
    and differ, and as `run_backfill`.
    """
    if name is None:
        return {}
    job = _jobs(settings).get(name)
    with log_progress(job, log):
        summary = run_backfill(
            settings, name, Runner(f"Airflow, run {run_id}", group=f"airflow {run_id}")
        )
    for warning in summary.warnings:
        log.warning("%s", warning)
    if summary.state != DONE:
        raise NotDoneError.of(name, summary.state)
    if summary.mode == "compare" and summary.differing:
        raise RowsDifferError(f"{summary.differing} rows differ: {dict(summary.tables)}")
    return summary.to_json()


def _jobs(settings: Settings) -> Jobs:
    return Jobs.for_pipeline(settings.open_relay())

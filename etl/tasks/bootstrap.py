"""A bootstrap as Airflow's tasks: one plans, one makes tables, several copy side by side, one
finishes. The tasks of a DAG run are a group that runs the job together; each goes on where it was
killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from sluice.etl.copy.bootstrap_run import BootstrapRun, BootstrapSummary, CopyProgressCounts
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.form import request_from_form
from sluice.etl.copy.run import BootstrapSession, plan_bootstrap
from sluice.etl.settings import Settings
from sluice.relay.jobs import CANCELLED, PAUSED, Job, Jobs, NotDoneError, Runner

__all__ = ["NotDoneError", "begin", "copy_share", "finish", "prepare"]

log = logging.getLogger("sluice.copy")

_LOG_INTERVAL_S = 5.0


def begin(settings: Settings, said: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Plan what the form says, see `sluice.etl.copy.form`.

    Unless `plan_only` make a job of it, or find the one that was begun so: {"plan": text, "job":
    its id or None}. Raises CopyError for what hinders it, and as `sluice.etl.copy.run_bootstrap`.
    """
    wish = request_from_form(said, f"airflow {run_id}")
    if said["plan_only"]:
        plan, name = plan_bootstrap(settings, wish), None
    else:
        with BootstrapSession.from_request(settings, wish) as work:
            job = work.begin(wish)
            plan, name = work.bootstrap.plan(wish.into), job.id
    text = "\n".join(plan.lines())
    log.info(
        "%s\n%s",
        f"the plan of the job {name}:" if name else "the plan, of which nothing is done:",
        text,
    )
    if plan.problems:
        raise CopyError("\n".join(plan.problems))
    return {"plan": text, "job": name}


def prepare(settings: Settings, name: str | None, tasks: int, run_id: str) -> list[dict[str, Any]]:
    """Make the tables: what each `copy_share` takes, at most so many `tasks`; nothing of no job.

    Raises as `sluice.etl.copy.run_bootstrap`.
    """
    if name is None:
        return []
    job = _job(settings, name)
    with (
        BootstrapSession.from_job(settings, job) as work,
        job.run(_runner("prepare", run_id)) as run,
    ):
        work.hold_gc()
        work.register()
        made = work.run_of(job, run, _log_progress(job))
        made.prepare()
        shares = max(1, min(tasks, len(made.plan.chunks)))
        return [{"job": name, "share": n, "of": shares} for n in range(shares)]


def copy_share(settings: Settings, share: Mapping[str, Any], run_id: str) -> dict[str, int]:
    """Copy a share of the chunks, then what others have left: what this process copied.

    Ends early if the job is to pause, or to be given up: `finish` does so. Raises LeaseLostError,
    and as `sluice.etl.copy.run_bootstrap`.
    """
    job = _job(settings, share["job"])
    name = f"copy {share['share'] + 1} of {share['of']}"
    with (
        BootstrapSession.from_job(settings, job, with_schema=False) as work,
        job.join(_runner(name, run_id)) as run,
    ):
        work.hold_gc()
        work.register()
        done = work.run_of(job, run, _log_progress(job)).copy(
            work.loads(), share["share"], share["of"]
        )
        return {"rows": done.rows, "chunks": done.chunks}


def finish(settings: Settings, name: str, run_id: str) -> dict[str, Any]:
    """What comes after rows, and the checkpoint: the job's result.

    Raises NotDoneError if the job is paused or given up instead, LeaseLostError, and as
    `sluice.etl.copy.run_bootstrap`.
    """
    job = _job(settings, name)
    with BootstrapSession.from_job(settings, job) as work:
        with job.join(_runner("finish", run_id)) as run:
            work.hold_gc()
            work.register()
            made: BootstrapRun = work.run_of(job, run, _log_progress(job))
            summary = made.finish(work.loads())
        work.release(summary)
    if summary.state == PAUSED:
        raise NotDoneError(
            f"the job {name} is paused, as was ordered",
            hint=(
                f"trigger the DAG with the same values, or `sluice jobs resume {name}`: either"
                " goes on"
            ),
        )
    if summary.state == CANCELLED:
        raise NotDoneError(
            f"the job {name} was given up, as was ordered{_left_text(summary)}",
            hint="trigger the DAG to begin anew",
        )
    return job.status().to_json()["result"] or {}


def _left_text(summary: BootstrapSummary) -> str:
    return f"; what stays downstream: {'; '.join(summary.left)}" if summary.left else ""


def _job(settings: Settings, name: str) -> Job:
    return Jobs.for_pipeline(settings.open_relay()).get(name)


def _runner(task: str, run_id: str) -> Runner:
    return Runner(f"Airflow's task {task}, run {run_id}", group=f"airflow {run_id}")


def _log_progress(job: Job) -> Callable[[CopyProgressCounts], None]:
    """Says in the log, every few seconds, how far the job is."""
    next_s = 0.0

    def say(_: CopyProgressCounts) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _LOG_INTERVAL_S
            log.info("%s: %s", job.id, job.status().progress)

    return say

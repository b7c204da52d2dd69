"""A bootstrap as Airflow's tasks: one plans, one makes tables, several copy side by side, one finishes. The tasks of
a DAG run are a group that runs the job together; each goes on where it was killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from etl.copy.bootstrap_run import BootstrapRun, BootstrapSummary, Progress
from etl.copy.errors import CopyError
from etl.copy.form import wish_of
from etl.copy.run import BootstrapWork, plan_bootstrap
from etl.settings import Settings
from relay.jobs import CANCELLED, PAUSED, Job, Jobs, NotDoneError, Runner

__all__ = ["NotDoneError", "begin", "copy_share", "finish", "prepare"]

log = logging.getLogger("sluice.copy")

_SAY_EVERY_S = 5.0


def begin(settings: Settings, said: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Plan what the form says, see `etl.copy.form`; unless `plan_only` make a job of it, or find the one that was begun
    so: {"plan": text, "job": its id or None}. Raises CopyError for what hinders it, and as
    `etl.copy.run_bootstrap`.
    """
    wish = wish_of(said, f"airflow {run_id}")
    if said["plan_only"]:
        plan, name = plan_bootstrap(settings, wish), None
    else:
        with BootstrapWork.asked_for(settings, wish) as work:
            job = work.begin(wish)
            plan, name = work.bootstrap.plan(wish.into), job.id
    text = "\n".join(plan.lines())
    log.info("%s\n%s", f"the plan of the job {name}:" if name else "the plan, of which nothing is done:", text)
    if plan.problems:
        raise CopyError("\n".join(plan.problems))
    return {"plan": text, "job": name}


def prepare(settings: Settings, name: str | None, tasks: int, run_id: str) -> list[dict[str, Any]]:
    """Make the tables: what each `copy_share` takes, at most so many `tasks`; nothing of no job. Raises as
    `etl.copy.run_bootstrap`.
    """
    if name is None:
        return []
    job = _job(settings, name)
    with BootstrapWork.of_job(settings, job) as work, job.run_as(_runner("prepare", run_id)) as run:
        work.hold_gc()
        work.register()
        made = work.run_of(job, run, _saying(job))
        made.prepare()
        shares = max(1, min(tasks, len(made.plan.chunks)))
        return [{"job": name, "share": n, "of": shares} for n in range(shares)]


def copy_share(settings: Settings, share: Mapping[str, Any], run_id: str) -> dict[str, int]:
    """Copy a share of the chunks, then what others have left: what this process copied. Ends early if the job is to
    pause, or to be given up: `finish` does so. Raises LeaseLostError, and as `etl.copy.run_bootstrap`.
    """
    job = _job(settings, share["job"])
    name = f"copy {share['share'] + 1} of {share['of']}"
    with (
        BootstrapWork.of_job(settings, job, with_schema=False) as work,
        job.join(_runner(name, run_id)) as run,
    ):
        work.hold_gc()
        work.register()
        done = work.run_of(job, run, _saying(job)).copy(work.loads(), share["share"], share["of"])
        return {"rows": done.rows, "chunks": done.chunks}


def finish(settings: Settings, name: str, run_id: str) -> dict[str, Any]:
    """What comes after rows, and the checkpoint: the job's result. Raises NotDoneError if the job is paused or given up
    instead, LeaseLostError, and as `etl.copy.run_bootstrap`.
    """
    job = _job(settings, name)
    with BootstrapWork.of_job(settings, job) as work:
        with job.join(_runner("finish", run_id)) as run:
            work.hold_gc()
            work.register()
            made: BootstrapRun = work.run_of(job, run, _saying(job))
            summary = made.finish(work.loads())
        work.let_go(summary)
    if summary.state == PAUSED:
        raise NotDoneError(
            f"the job {name} is paused, as was ordered",
            way_out=f"trigger the DAG with the same values, or `sluice jobs resume {name}`: either goes on",
        )
    if summary.state == CANCELLED:
        raise NotDoneError(
            f"the job {name} was given up, as was ordered{_left(summary)}", way_out="trigger the DAG to begin anew"
        )
    return job.status().to_json()["result"] or {}


def _left(summary: BootstrapSummary) -> str:
    return f"; what stays downstream: {'; '.join(summary.left)}" if summary.left else ""


def _job(settings: Settings, name: str) -> Job:
    return Jobs.of(settings.open_relay()).get(name)


def _runner(task: str, run_id: str) -> Runner:
    return Runner(f"Airflow's task {task}, run {run_id}", group=f"airflow {run_id}")


def _saying(job: Job) -> Callable[[Progress], None]:
    """Says in the log, every few seconds, how far the job is."""
    next_s = 0.0

    def say(_: Progress) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _SAY_EVERY_S
            log.info("%s: %s", job.id, job.status().progress)

    return say

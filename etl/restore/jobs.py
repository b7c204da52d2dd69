"""Jobs of the kind `restore`: asked for, run, given up."""

from __future__ import annotations

from collections.abc import Callable

from etl.copy import Progress
from etl.ownership import downstream_name
from etl.restore.errors import RestoreError
from etl.restore.holding import giving_up, hold, let_go
from etl.restore.pace import KIND
from etl.restore.plan import RestorePlan
from etl.restore.planning import plan_restore
from etl.restore.request import Request
from etl.restore.run import RestoreRun
from etl.restore.summary import RestoreSummary
from etl.restore.ways import OnSpark, Ways
from etl.settings import Settings
from relay.jobs import CANCELLED, OVER, Job, JobOverlapError, Jobs, Runner, Touches
from upstream.table_name import full_name

__all__ = ["ask_for", "begun", "cancel_restore", "run_restore"]

ShowProgress = Callable[[Progress], None]


def ask_for(settings: Settings, request: Request, by: str) -> Job:
    """The job that does this: the one that was asked for the same and isn't over, else a new one. Nothing is done yet,
    but nothing of what it needs is removed any more. Raises RestoreError for what hinders it, JobOverlapError if
    another job writes there, and as `plan_restore`.
    """
    found = begun(settings, request)
    if found is not None:
        return found
    request = request.with_end(settings.open_relay())
    jobs = Jobs.of(settings.open_relay())
    plan = plan_restore(settings, request)
    tables = tuple(full_name(request.into.replace("{schema}", schema), name) for schema, name in plan.names)
    touched = Touches(downstream_name(request.server(settings).target), tables)
    if plan.problems:
        _check_overlap(jobs, touched)  # whose tables they are that are there already
        raise RestoreError("\n".join(plan.problems))
    job = jobs.create(KIND, request.to_json(), touched, by)
    job.keep_plan(plan.to_json())
    hold(settings, job, plan.since, plan.base)
    return job


def begun(settings: Settings, request: Request) -> Job | None:
    """The job that was asked for the same and isn't over. Raises relay errors, OSError."""
    open_now = (job for job in Jobs.of(settings.open_relay()).unfinished() if job.spec.kind == KIND)
    return next((job for job in open_now if request.is_same(Request.from_json(job.spec.asked))), None)


def run_restore(
    settings: Settings,
    job: Job,
    runner: Runner,
    *,
    ways: Ways | None = None,
    on_progress: ShowProgress = lambda _: None,
) -> RestoreSummary:
    """Do what the job was asked for, or go on with it, until it is done or somebody orders it to pause or to be
    cancelled. Raises RestoreError, VerifyError, JobRunsError, JobError, LeaseLostError, and what loading and applying
    raise: CopyError, ApplyError, DdlError, DownstreamError, relay errors, SparkError.
    """
    with job.run_as(runner) as run:
        plan = _planned(settings, job)
        summary = RestoreRun(settings, job, run, plan, on_progress).whole(ways or OnSpark(f"restore {job.id}"))
    let_go(settings, job)
    return summary


def cancel_restore(settings: Settings, job: Job, runner: Runner) -> RestoreSummary:
    """Give up a job that no process runs: what it has made goes. Raises as `run_restore`."""
    with giving_up(settings, job, runner) as (run, plan):
        if plan is None:
            return RestoreSummary(job.id, "", Request.from_json(job.spec.asked).until, 0, state=CANCELLED)
        return RestoreRun(settings, job, run, RestorePlan.from_json(plan), lambda _: None).cancel()


def _planned(settings: Settings, job: Job) -> RestorePlan:
    """The plan that was kept; made now, if the process that asked for the job died before it had one."""
    kept = job.plan()
    if kept is None:
        kept = job.keep_plan(_possible(settings, Request.from_json(job.spec.asked)).to_json())
    plan = RestorePlan.from_json(kept)
    if job.entry().state not in OVER:
        hold(settings, job, plan.since, plan.base)
    return plan


def _possible(settings: Settings, request: Request) -> RestorePlan:
    plan = plan_restore(settings, request)
    if plan.problems:
        raise RestoreError("\n".join(plan.problems))
    return plan


def _check_overlap(jobs: Jobs, touched: Touches) -> None:
    for other in jobs.overlapping(touched):
        if touched.tables:
            raise JobOverlapError(
                f"the job {other.spec}, which is {other.status().state}, restores some of these tables",
                way_out=f"`sluice jobs show {other.id}` tells more, `sluice jobs cancel {other.id}` gives it up",
            )

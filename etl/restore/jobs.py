"""Jobs of the kind `restore`: asked for, run, given up."""

from __future__ import annotations

from collections.abc import Callable

from sluice.etl.copy import CopyProgressCounts
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.estimate import KIND
from sluice.etl.restore.executor import RestoreExecutor, SparkExecutor
from sluice.etl.restore.pinning import cancelling, pin, unpin
from sluice.etl.restore.plan import RestorePlan
from sluice.etl.restore.planning import plan_restore
from sluice.etl.restore.request import RestoreRequest
from sluice.etl.restore.run import RestoreRun
from sluice.etl.restore.summary import RestoreSummary
from sluice.etl.settings import Settings
from sluice.relay.jobs import (
    CANCELLED,
    FINAL_STATES,
    Job,
    JobOverlapError,
    Jobs,
    Runner,
    WriteScope,
)
from sluice.tidb.table_name import full_name

__all__ = ["cancel_restore", "create_or_resume", "find_open_job", "run_restore"]

ShowProgress = Callable[[CopyProgressCounts], None]


def create_or_resume(settings: Settings, request: RestoreRequest, by: str) -> Job:
    """Return the unfinished job with the same request, else a new one.

    Nothing is done yet, but nothing of what it needs is removed any more. Raises RestoreError for
    what prevents it, JobOverlapError if another job writes there, and as `plan_restore`.
    """
    found = find_open_job(settings, request)
    if found is not None:
        return found
    request = request.with_end(settings.open_relay())
    jobs = Jobs.for_pipeline(settings.open_relay())
    plan = plan_restore(settings, request)
    tables = tuple(
        full_name(request.into.replace("{schema}", schema), name) for schema, name in plan.names
    )
    touched = WriteScope(downstream_name(request.server(settings).target), tables)
    if plan.problems:
        _check_overlap(jobs, touched)  # another job's tables may be there already
        raise RestoreError("\n".join(plan.problems))
    job = jobs.create(KIND, request.to_json(), touched, by)
    job.save_plan(plan.to_json())
    pin(settings, job, plan.since, plan.snapshot)
    return job


def find_open_job(settings: Settings, request: RestoreRequest) -> Job | None:
    """Return the unfinished job with the same request. Raises relay errors, OSError."""
    jobs = Jobs.for_pipeline(settings.open_relay())
    return jobs.find_open(KIND, lambda asked: request.is_same(RestoreRequest.from_json(asked)))


def run_restore(
    settings: Settings,
    job: Job,
    runner: Runner,
    *,
    ways: RestoreExecutor | None = None,
    on_progress: ShowProgress = lambda _: None,
) -> RestoreSummary:
    """Run the job, or continue it, until it is done or an operator pauses or cancels it.

    Raises RestoreError, VerifyError, JobRunsError, JobError, LeaseLostError, and what loading and
    applying raise: CopyError, ApplyError, DdlError, DownstreamError, relay errors, SparkError.
    """
    with job.run(runner) as run:
        plan = _saved_or_new_plan(settings, job)
        summary = RestoreRun(settings, job, run, plan, on_progress).whole(
            ways or SparkExecutor(f"restore {job.id}")
        )
    unpin(settings, job)
    return summary


def cancel_restore(settings: Settings, job: Job, runner: Runner) -> RestoreSummary:
    """Give up a job that no process runs: what it has made goes. Raises as `run_restore`."""
    with cancelling(settings, job, runner) as (run, plan):
        if plan is None:
            return RestoreSummary(
                job.id, "", RestoreRequest.from_json(job.spec.asked).until, 0, state=CANCELLED
            )
        return RestoreRun(settings, job, run, RestorePlan.from_json(plan), lambda _: None).cancel()


def _saved_or_new_plan(settings: Settings, job: Job) -> RestorePlan:
    """Return the saved plan.

    It is made now if the process that created the job died before it had one.
    """
    kept = job.plan()
    if kept is None:
        kept = job.save_plan(
            _require_possible(settings, RestoreRequest.from_json(job.spec.asked)).to_json()
        )
    plan = RestorePlan.from_json(kept)
    if job.entry().state not in FINAL_STATES:
        pin(settings, job, plan.since, plan.snapshot)
    return plan


def _require_possible(settings: Settings, request: RestoreRequest) -> RestorePlan:
    plan = plan_restore(settings, request)
    if plan.problems:
        raise RestoreError("\n".join(plan.problems))
    return plan


def _check_overlap(jobs: Jobs, touched: WriteScope) -> None:
    for other in jobs.overlapping(touched):
        if touched.tables:
            raise JobOverlapError(
                f"the job {other.spec}, which is {other.status().state}, restores some of these"
                " tables",
                hint=(
                    f"`sluice jobs show {other.id}` shows more, `sluice jobs cancel {other.id}`"
                    " gives it up"
                ),
            )

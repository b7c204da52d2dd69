"""Jobs of the kinds `restore` and `restore-files`: asked for, run, given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sluice.etl.copy import CopyProgressCounts
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.history.as_of import PlanExecutor
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.executor import RestoreExecutor, SparkExecutor
from sluice.etl.restore.files_folder import FilesSummary
from sluice.etl.restore.files_plan import FilesPlan, plan_files
from sluice.etl.restore.into_files import FilesRestoreJob
from sluice.etl.restore.pinning import cancelling, pin, unpin
from sluice.etl.restore.plan import RestorePlan, RestoreSummary
from sluice.etl.restore.planner import plan_restore
from sluice.etl.restore.request import FilesRequest, RestoreRequest
from sluice.etl.restore.run import RestoreRun
from sluice.etl.settings import Settings
from sluice.relay.jobs import (
    CANCELLED,
    FINAL_STATES,
    Job,
    JobOverlapError,
    JobRun,
    Jobs,
    Runner,
    WriteScope,
    with_landed_end,
)
from sluice.tidb.table_name import full_name

__all__ = ["cancel_files", "cancel_restore", "create_or_resume", "run_files", "run_restore"]

_FILES_DOWNSTREAM = "files"
"""Stands for a downstream's name, so that two jobs do not write to one folder."""
ShowProgress = Callable[[CopyProgressCounts], None]
Request = RestoreRequest | FilesRequest


def create_or_resume(settings: Settings, request: Request, by: str) -> Job:
    """Return the unfinished job with the same request, else a new one.

    Nothing is done yet, but nothing of what it needs is removed any more. Raises RestoreError for
    what prevents it, JobOverlapError if another job writes there, and as `plan_restore` and
    `plan_files`.
    """
    jobs = Jobs.for_pipeline(settings.open_relay())
    found = jobs.find_open(request.KIND, request.to_json())
    if found is not None:
        return found
    request = with_landed_end(request, settings.open_relay())
    plan = _plan(settings, request)
    touched = _write_scope(settings, request, plan)
    if plan.problems:
        if isinstance(plan, RestorePlan):
            _check_overlap(jobs, touched)  # names the job whose tables are there already
        raise RestoreError("\n".join(plan.problems))
    job = jobs.create(request.KIND, request.to_json(), touched, by)
    job.save_plan(plan.to_json())
    pin(settings, job, plan.since, plan.snapshot)
    return job


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
    with _planned_run(settings, job, runner) as (run, plan):
        return RestoreRun(settings, job, run, RestorePlan.from_json(plan), on_progress).whole(
            ways or SparkExecutor(f"restore {job.id}")
        )


def run_files(
    settings: Settings, job: Job, runner: Runner, *, compute: PlanExecutor | None = None
) -> FilesSummary:
    """Run the job, or continue it, until it is done or an operator pauses or cancels it.

    `compute`: where tables are computed, Spark unless another is given. Raises as
    `FilesRestoreJob`, JobRunsError, JobError.
    """
    with _planned_run(settings, job, runner) as (run, plan):
        return FilesRestoreJob(settings, job, run, FilesPlan.from_json(plan), compute).whole()


def cancel_restore(settings: Settings, job: Job, runner: Runner) -> RestoreSummary:
    """Cancel a job that no process runs, and remove what it made. Raises as `run_restore`."""
    with cancelling(settings, job, runner) as (run, plan):
        if plan is None:
            until = RestoreRequest.from_json(job.spec.asked).until
            return RestoreSummary(job.id, "", until, 0, state=CANCELLED)
        return RestoreRun(settings, job, run, RestorePlan.from_json(plan), lambda _: None).cancel()


def cancel_files(settings: Settings, job: Job, runner: Runner) -> FilesSummary:
    """Cancel a job that no process runs, and remove what it made. Raises as `run_files`."""
    with cancelling(settings, job, runner) as (run, plan):
        if plan is None:
            request = FilesRequest.from_json(job.spec.asked)
            return FilesSummary(job.id, request.until, request.folder, (), 0, CANCELLED)
        return FilesRestoreJob(settings, job, run, FilesPlan.from_json(plan), None).cancel()


@contextmanager
def _planned_run(
    settings: Settings, job: Job, runner: Runner
) -> Iterator[tuple[JobRun, dict[str, Any]]]:
    """Run the job with its saved plan.

    The plan is made now if the process that asked for the job died before it had one.
    """
    with job.run(runner) as run:
        plan = job.plan()
        if plan is None:
            of = FilesRequest if job.spec.kind == FilesRequest.KIND else RestoreRequest
            made = _plan(settings, of.from_json(job.spec.asked))
            if made.problems:
                raise RestoreError("\n".join(made.problems))
            plan = job.save_plan(made.to_json())
        if job.entry().state not in FINAL_STATES:
            pin(settings, job, plan["since"], plan["snapshot"])
        yield run, plan
    unpin(settings, job)


def _plan(settings: Settings, request: Request) -> RestorePlan | FilesPlan:
    if isinstance(request, FilesRequest):
        return plan_files(settings, request)
    return plan_restore(settings, request)


def _write_scope(settings: Settings, request: Request, plan: RestorePlan | FilesPlan) -> WriteScope:
    if isinstance(request, FilesRequest):
        return WriteScope(_FILES_DOWNSTREAM, (str(request.folder),))
    assert isinstance(plan, RestorePlan)
    tables = tuple(
        full_name(request.into.replace("{schema}", schema), name) for schema, name in plan.names
    )
    return WriteScope(downstream_name(request.server(settings).target), tables)


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

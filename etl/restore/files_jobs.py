"""Jobs of the kind `restore-files`: asked for, run, given up."""

from __future__ import annotations

from sluice.etl.history.as_of import PlanExecutor
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.files_plan import FilesPlan, plan_files
from sluice.etl.restore.files_request import FilesRequest
from sluice.etl.restore.files_summary import FilesSummary
from sluice.etl.restore.into_files import FilesRestoreJob
from sluice.etl.restore.pinning import cancelling, pin, unpin
from sluice.etl.settings import Settings
from sluice.relay.jobs import CANCELLED, FINAL_STATES, Job, Jobs, Runner, WriteScope

__all__ = [
    "FILES_KIND",
    "cancel_files",
    "create_or_resume_files",
    "find_open_files_job",
    "run_files",
]

FILES_KIND = "restore-files"
_DOWNSTREAM = "files"
"""In place of a downstream's name: two jobs don't write to one folder."""


def create_or_resume_files(settings: Settings, request: FilesRequest, by: str) -> Job:
    """Return the unfinished job with the same request, else a new one.

    Nothing is done yet, but nothing of what it needs is removed any more. Raises RestoreError for
    what prevents it, JobOverlapError if another job writes to the folder, and as `plan_files`.
    """
    found = find_open_files_job(settings, request)
    if found is not None:
        return found
    plan = _require_possible(settings, request)
    touched = WriteScope(_DOWNSTREAM, (str(request.folder),))
    job = Jobs.for_pipeline(settings.open_relay()).create(
        FILES_KIND, plan.request.to_json(), touched, by
    )
    job.save_plan(plan.to_json())
    pin(settings, job, plan.since, plan.snapshot)
    return job


def find_open_files_job(settings: Settings, request: FilesRequest) -> Job | None:
    """Return the unfinished job with the same request. Raises relay errors, OSError."""
    jobs = Jobs.for_pipeline(settings.open_relay())
    return jobs.find_open(FILES_KIND, lambda asked: request.is_same(FilesRequest.from_json(asked)))


def run_files(
    settings: Settings, job: Job, runner: Runner, *, compute: PlanExecutor | None = None
) -> FilesSummary:
    """Run the job, or continue it, until it is done or an operator pauses or cancels it.

    `compute`: where tables are computed, Spark unless something else is given. Raises as
    `FilesRestoreJob`, JobRunsError, JobError.
    """
    with job.run(runner) as run:
        kept = job.plan() or job.save_plan(
            _require_possible(settings, FilesRequest.from_json(job.spec.asked)).to_json()
        )
        plan = FilesPlan.from_json(kept)
        if job.entry().state not in FINAL_STATES:
            pin(settings, job, plan.since, plan.snapshot)
        summary = FilesRestoreJob(settings, job, run, plan, compute).whole()
    unpin(settings, job)
    return summary


def cancel_files(settings: Settings, job: Job, runner: Runner) -> FilesSummary:
    """Give up a job that no process runs: what it has made goes. Raises as `run_files`."""
    with cancelling(settings, job, runner) as (run, plan):
        if plan is None:
            request = FilesRequest.from_json(job.spec.asked)
            return FilesSummary(job.id, request.until, request.folder, (), 0, CANCELLED)
        return FilesRestoreJob(settings, job, run, FilesPlan.from_json(plan), None).cancel()


def _require_possible(settings: Settings, request: FilesRequest) -> FilesPlan:
    plan = plan_files(settings, request)
    if plan.problems:
        raise RestoreError("\n".join(plan.problems))
    return plan

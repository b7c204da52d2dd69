"""Jobs of the kind `restore-files`: asked for, run, given up."""

from __future__ import annotations

from etl.asof import Run
from etl.restore.errors import RestoreError
from etl.restore.files_plan import FilesPlan, plan_files
from etl.restore.files_request import FilesRequest
from etl.restore.files_summary import FilesSummary
from etl.restore.holding import giving_up, hold, let_go
from etl.restore.into_files import FilesRun
from etl.settings import Settings
from relay.jobs import CANCELLED, OVER, Job, Jobs, Runner, Touches

__all__ = ["FILES_KIND", "ask_for_files", "begun_files", "cancel_files", "run_files"]

FILES_KIND = "restore-files"
_DOWNSTREAM = "files"
"""In the place of a downstream's name: two jobs don't write to one folder."""


def ask_for_files(settings: Settings, request: FilesRequest, by: str) -> Job:
    """The job that does this: the one that was asked for the same and isn't over, else a new one. Nothing is done yet,
    but nothing of what it needs is removed any more. Raises RestoreError for what hinders it, JobOverlapError if
    another job writes to the folder, and as `plan_files`.
    """
    found = begun_files(settings, request)
    if found is not None:
        return found
    plan = _possible(settings, request)
    touched = Touches(_DOWNSTREAM, (str(request.folder),))
    job = Jobs.of(settings.open_relay()).create(FILES_KIND, plan.request.to_json(), touched, by)
    job.keep_plan(plan.to_json())
    hold(settings, job, plan.since, plan.base)
    return job


def begun_files(settings: Settings, request: FilesRequest) -> Job | None:
    """The job that was asked for the same and isn't over. Raises relay errors, OSError."""
    open_now = (job for job in Jobs.of(settings.open_relay()).unfinished() if job.spec.kind == FILES_KIND)
    return next((job for job in open_now if request.is_same(FilesRequest.from_json(job.spec.asked))), None)


def run_files(settings: Settings, job: Job, runner: Runner, *, compute: Run | None = None) -> FilesSummary:
    """Do what the job was asked for, or go on with it, until it is done or somebody orders it to pause or to be
    cancelled. `compute`: where tables are computed, Spark unless something else is given. Raises as `FilesRun`,
    JobRunsError, JobError.
    """
    with job.run_as(runner) as run:
        kept = job.plan() or job.keep_plan(_possible(settings, FilesRequest.from_json(job.spec.asked)).to_json())
        plan = FilesPlan.from_json(kept)
        if job.entry().state not in OVER:
            hold(settings, job, plan.since, plan.base)
        summary = FilesRun(settings, job, run, plan, compute).whole()
    let_go(settings, job)
    return summary


def cancel_files(settings: Settings, job: Job, runner: Runner) -> FilesSummary:
    """Give up a job that no process runs: what it has made goes. Raises as `run_files`."""
    with giving_up(settings, job, runner) as (run, plan):
        if plan is None:
            request = FilesRequest.from_json(job.spec.asked)
            return FilesSummary(job.id, request.until, request.folder, (), 0, CANCELLED)
        return FilesRun(settings, job, run, FilesPlan.from_json(plan), None).cancel()


def _possible(settings: Settings, request: FilesRequest) -> FilesPlan:
    plan = plan_files(settings, request)
    if plan.problems:
        raise RestoreError("\n".join(plan.problems))
    return plan

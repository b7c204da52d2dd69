"""While a restore isn't over, nothing is removed from the archive that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from etl.settings import Settings
from relay.archive import Archive, Hold, Holds
from relay.jobs import CANCEL, CANCELLED, OVER, Job, Run, Runner

__all__ = ["giving_up", "hold", "let_go"]


def hold(settings: Settings, job: Job, since: int, base: str) -> None:
    """Have nothing removed of the base with this id ("" for none), nor of the chain from `since` (TSO) on. Raises
    RemovedError, relay errors, OSError.
    """
    archive = Archive.open(settings.archive_url)
    last = archive.last()
    held = Hold(f"the restore {job.id}", since, (base,) if base else (), job.id, last.hi if last else since)
    Holds(archive.storage).note(_name(job), held)


def let_go(settings: Settings, job: Job) -> None:
    """Forget it if the job is over."""
    if job.entry().state in OVER:
        Holds(Archive.open(settings.archive_url).storage).forget(_name(job))


@contextmanager
def giving_up(settings: Settings, job: Job, runner: Runner) -> Iterator[tuple[Run, dict[str, Any] | None]]:
    """Give up a job that no process runs: its run and its plan, for what it has made to be removed. Without a plan it
    is over already: the process that asked for it died before it had one, and wrote nothing. Raises JobRunsError,
    JobError, LeaseLostError, relay errors, OSError.
    """
    job.order(CANCEL, str(runner))
    with job.run_as(runner) as run:
        plan = job.plan()
        if plan is None:
            run.end(CANCELLED)
        yield run, plan
    let_go(settings, job)


def _name(job: Job) -> str:
    return f"restore-{job.spec.token}"

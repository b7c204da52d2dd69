"""While a restore isn't over, nothing is removed from the archive that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sluice.etl.settings import Settings
from sluice.relay.archive import Archive, Pin, Pins
from sluice.relay.jobs import CANCEL, CANCELLED, FINAL_STATES, Job, JobRun, Runner

__all__ = ["cancelling", "pin", "unpin"]


def pin(settings: Settings, job: Job, since: int, snapshot: str) -> None:
    """Pin the snapshot with the id `base` ("" for none), and the chain from `since` (TSO) on.

    Raises RemovedError, relay errors, OSError.
    """
    archive = Archive.open(settings.archive_url)
    last = archive.last()
    held = Pin(
        f"the restore {job.id}",
        since,
        (snapshot,) if snapshot else (),
        job.id,
        last.hi if last else since,
    )
    Pins(archive.storage).note(_pin_name(job), held)


def unpin(settings: Settings, job: Job) -> None:
    """Remove the job's pin if the job is over."""
    if job.entry().state in FINAL_STATES:
        Pins(Archive.open(settings.archive_url).storage).forget(_pin_name(job))


@contextmanager
def cancelling(
    settings: Settings, job: Job, runner: Runner
) -> Iterator[tuple[JobRun, dict[str, Any] | None]]:
    """Cancel a job that no process runs; yield its run and its plan, to remove what it has made.

    Without a plan it is over already: the process that created it died before it had one, and wrote
    nothing. Raises JobRunsError, JobError, LeaseLostError, relay errors, OSError.
    """
    job.order(CANCEL, str(runner))
    with job.run(runner) as run:
        plan = job.plan()
        if plan is None:
            run.end(CANCELLED)
        yield run, plan
    unpin(settings, job)


def _pin_name(job: Job) -> str:
    return f"restore-{job.spec.token}"

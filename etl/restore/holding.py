"""While a restore isn't over, nothing is removed from the archive that it reads."""

from __future__ import annotations

from etl.settings import Settings
from relay.archive import Archive, Hold, Holds
from relay.jobs import OVER, Job

__all__ = ["hold", "let_go"]


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


def _name(job: Job) -> str:
    return f"restore-{job.spec.token}"

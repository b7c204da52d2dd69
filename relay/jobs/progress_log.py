"""Log a job's progress, in a process that runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.relay.jobs.background import run_every
from sluice.relay.jobs.jobs import Job

__all__ = ["log_progress"]

_LOG_INTERVAL_S = 5.0


@contextmanager
def log_progress(job: Job, log: logging.Logger) -> Iterator[None]:
    """Log the progress every few seconds, while the context lasts."""

    def report() -> bool:
        log.info("%s: %s", job.id, job.status().progress)
        return False

    with run_every(report, _LOG_INTERVAL_S, "progress"):
        yield

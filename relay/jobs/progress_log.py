"""A process that runs a job says in its log how far that is."""

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
    """Say so every few seconds, as long as the context lasts."""

    def say() -> bool:
        log.info("%s: %s", job.id, job.status().progress)
        return False

    with run_every(say, _LOG_INTERVAL_S, "progress"):
        yield

"""A process that runs a job says in its log how far that is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from relay.jobs.jobs import Job
from relay.jobs.meanwhile import meanwhile

__all__ = ["saying"]

_SAY_EVERY_S = 5.0


@contextmanager
def saying(job: Job, log: logging.Logger) -> Iterator[None]:
    """Say so every few seconds, as long as the context lasts."""

    def say() -> bool:
        log.info("%s: %s", job.id, job.status().progress)
        return False

    with meanwhile(say, _SAY_EVERY_S, "progress"):
        yield

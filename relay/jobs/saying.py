"""A process that runs a job says in its log how far that is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from relay.jobs.jobs import Job

__all__ = ["saying"]

_SAY_EVERY_S = 5.0


@contextmanager
def saying(job: Job, log: logging.Logger) -> Iterator[None]:
    """Say so every few seconds, as long as the context lasts."""
    over = threading.Event()

    def say() -> None:
        while not over.wait(_SAY_EVERY_S):
            log.info("%s: %s", job.id, job.status().progress)

    thread = threading.Thread(target=say, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

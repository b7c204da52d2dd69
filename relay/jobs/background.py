"""Run a check in a thread beside a job's work, every few seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sluice.relay.jobs.job import Job
from sluice.relay.jobs.lease import JobRun

__all__ = ["log_progress", "run_every", "stop_on_orders"]

_ORDER_POLL_INTERVAL_S = 0.2


@contextmanager
def run_every(look: Callable[[], bool], every_s: float, name: str) -> Iterator[None]:
    """Call `look` in a thread of its own, `name`, every `every_s` seconds.

    It ends with the context, or once `look` returns true.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            if look():
                return

    thread = threading.Thread(target=watch, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def stop_on_orders(run: JobRun, stop: threading.Event) -> Iterator[None]:
    """Set `stop` once the job is to pause or is cancelled, or another process runs it."""

    def heard() -> bool:
        if run.order is not None or run.is_lost:
            stop.set()
        return stop.is_set()

    with run_every(heard, _ORDER_POLL_INTERVAL_S, "job orders"):
        yield


_LOG_INTERVAL_S = 5.0


@contextmanager
def log_progress(job: Job, log: logging.Logger) -> Iterator[None]:
    """Log the progress every few seconds, while the context lasts."""

    def report() -> bool:
        log.info("%s: %s", job.id, job.status().progress)
        return False

    with run_every(report, _LOG_INTERVAL_S, "progress"):
        yield

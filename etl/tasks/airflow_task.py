"""Run a task's work, and wait for its transient errors or report the others.

A transient error is waited for, also before the loops have begun. A permanent one fails the task at
once: it is recorded where `sluice status` finds it, and its hint is the last line of the task's
log.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from sluice.errors import DefectError, SluiceError, ours
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings import Settings
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.relay import Failure, RelayError, RelayLog

__all__ = ["TaskFailedPermanently", "run_job_task", "run_paired", "run_task"]

log = logging.getLogger("sluice")

T = TypeVar("T")
Work = Callable[[Settings, Callable[[object], None]], dict[str, Any]]
"""The work of a task with the settings.

It calls the second parameter, with anything, whenever it makes progress.
"""
PairedWork = Callable[[Settings, Callable[[object], None], threading.Event], dict[str, Any]]
"""The same; it ends early, and in good order, when the third is set."""
_PEER_CHECK_INTERVAL_S = 10.0
_RESUME_WAIT_S = 20.0
"""How long a task that has stopped waits for operators to resume it.

Then it fails, and its DAG pauses: what they order between the two would be lost, as nothing of
Airflow's keeps it.
"""
_POLL_INTERVAL_S = 0.5
_SERVICE_POLL_INTERVAL_S = 3.0
"""A service may be stopped for hours, and an object store charges for each look."""


class TaskFailedPermanently(SluiceError):
    """Trying the task again doesn't help. Each one has a hint of its own."""

    hint = "see the task's log"


def run_task(
    pipeline: NamedPipeline,
    what: str,
    work: Work,
    *,
    ended: threading.Event | None = None,
    on_stop: Callable[[SluiceError], None] = lambda _: None,
) -> dict[str, Any]:
    """Do the work of the task `what` (``land``, ``apply``) of a pipeline.

    `on_stop` is called with what operators have to act on. With `ended` their answer is waited for
    until that is set; the result is {} then. Raises TaskFailedPermanently if they don't act at
    once; with `ended` only if they couldn't see that they have to.
    """
    waiting = RetryBackoff(log, f"the task {what}")
    note = _FailureRecord(what)

    def got_on(progress: object) -> None:
        waiting.over()
        note.on_progress(progress)

    while True:
        try:
            settings = pipeline.settings
            note.relay = settings.open_relay()
            return work(settings, got_on)
        except Exception as error:
            reason = ours(error)
            if ended is not None and ended.is_set():
                return {}
            if reason.transient:
                _sleep(waiting.after(reason), ended)
                continue
            log.error("%s has stopped: %s: %s", what, type(reason).__name__, reason)
            on_stop(reason)
            if note.failed(reason):
                if note.is_answered(ended):
                    log.warning("%s resumes, as an operator ordered", what)
                    waiting.over()
                    continue
                if ended is not None:
                    return {}
            raise _permanent_failure(what, reason) from (
                error if isinstance(reason, DefectError) else None
            )


def _sleep(seconds: float, ended: threading.Event | None) -> None:
    if ended is None:
        time.sleep(seconds)
    else:
        ended.wait(seconds)


def run_paired(pipeline: NamedPipeline, what: str, other: str, work: PairedWork) -> dict[str, Any]:
    """Run one of two tasks of a run as `run_task` does, and end it when the `other` has stopped.

    Then the run is over and its DAG pauses at once, before an operator has repaired the cause and
    unpaused it.
    """
    stop, over = threading.Event(), threading.Event()
    begun_ms = time.time_ns() // 1_000_000

    def look() -> None:
        relay: RelayLog | None = None
        seen, since = None, 0.0
        while not stop.is_set() and not over.wait(_PEER_CHECK_INTERVAL_S):
            # the task itself meets what is wrong there
            with contextlib.suppress(SluiceError, OSError):
                relay = relay or pipeline.settings.open_relay()
                failures = [
                    each
                    for each in relay.failures.list()
                    if each.what == other and each.made_ms >= begun_ms
                ]
                found = next(
                    (each for each in failures if not relay.failures.is_answered(each)), None
                )
                if found != seen:
                    seen, since = found, time.monotonic()
                if found is not None and time.monotonic() >= since + _RESUME_WAIT_S:
                    log.info("the task %s has stopped, so this one ends: the DAG pauses", other)
                    stop.set()

    thread = threading.Thread(target=look, name=f"beside-{other}", daemon=True)
    thread.start()
    try:
        # what passes isn't waited for any longer either
        return run_task(
            pipeline,
            what,
            lambda settings, got_on: {} if stop.is_set() else work(settings, got_on, stop),
        )
    finally:
        over.set()
        thread.join(5)


def run_job_task(pipeline: NamedPipeline, what: str, work: Callable[[Settings], T]) -> T:
    """Do the work of a task of a job (`sluice.relay.jobs`), which records its outcome itself.

    Raises TaskFailedPermanently if an operator has to act.
    """
    waiting = RetryBackoff(log, f"the task {what}")
    while True:
        try:
            return work(pipeline.settings)
        except Exception as error:
            reason = ours(error)
            if reason.transient:
                time.sleep(waiting.after(reason))
                continue
            raise TaskFailedPermanently(
                f"{what} has stopped: {reason}",
                hint=f"{reason.hint}; then trigger the DAG with the same values: it goes on",
            ) from (error if isinstance(reason, DefectError) else None)


def _permanent_failure(what: str, reason: SluiceError) -> TaskFailedPermanently:
    return TaskFailedPermanently(
        f"{what} has stopped: {type(reason).__name__}: {reason}",
        hint=(
            f"{reason.hint}; then `sluice resume`, or unpause the DAG, which pauses when this"
            " run is over, in half a minute"
        ),
    )


class _FailureRecord:
    """The record of why the task has stopped, which `sluice status` reads."""

    def __init__(self, what: str) -> None:
        self._task = what
        self._has_progressed = False
        self._failure: Failure | None = None
        self.relay: RelayLog | None = None

    def on_progress(self, _: object) -> None:
        """Clear the failure at the first progress."""
        if not self._has_progressed and self.relay is not None:
            self._has_progressed = True
            with contextlib.suppress(RelayError, OSError):
                self.relay.failures.clear(self._task)

    def failed(self, reason: SluiceError) -> bool:
        """Write down that the task has stopped; whether operators can see it."""
        if self.relay is None:
            return False
        self._failure = Failure(self._task, str(reason), reason.hint, time.time_ns() // 1_000_000)
        try:
            self.relay.failures.note(self._failure)
        except (RelayError, OSError) as error:
            log.warning(
                "cannot record for `sluice status` why %s stopped: %s",
                self._task,
                error,
            )
            return False
        self._has_progressed = False
        return True

    def is_answered(self, ended: threading.Event | None) -> bool:
        """Wait for operators to resume the task; whether they did so in time."""
        assert self.relay is not None and self._failure is not None
        end = time.monotonic() + _RESUME_WAIT_S
        while time.monotonic() < end if ended is None else not ended.is_set():
            with contextlib.suppress(RelayError, OSError):
                if self.relay.failures.is_answered(self._failure):
                    self.relay.failures.clear(self._task)
                    return True
            _sleep(_POLL_INTERVAL_S if ended is None else _SERVICE_POLL_INTERVAL_S, ended)
        return False

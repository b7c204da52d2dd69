"""The edge to Airflow: a task's work, and what becomes of its errors.

An error that passes is raised as it is, and Airflow tries the task again. One that doesn't fails the task at once: it
is written down where `sluice status` finds it, and its way out is the last line of the task's log.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from errors import DefectError, SluiceError, ours
from etl.settings import Settings, load_settings
from relay import Failure, RelayError, RelayLog

__all__ = ["TaskStopped", "run_task", "say_way_out"]

log = logging.getLogger("sluice")

Work = Callable[[Settings, Callable[[object], None]], dict[str, Any]]
"""What a task does with the settings; the second is to be called, with anything, whenever it has got on."""


class TaskStopped(SluiceError, AirflowFailException):
    """Airflow doesn't try the task again. Every one has a way out of its own."""

    way_out = "see the task's log"


def run_task(what: str, work: Work) -> dict[str, Any]:
    """Do the work of the task `what` (``land``, ``apply``), on the settings that the environment names. Raises
    TaskStopped if somebody has to act, and else what passes.
    """
    relay: list[RelayLog] = []
    told: list[object] = []

    def got_on(_: object) -> None:
        if not told:
            told.append(True)
            with contextlib.suppress(OSError):
                relay[0].failures.clear(what)

    try:
        settings = load_settings()
        relay.append(RelayLog.open(settings.relay.url))
        return work(settings, got_on)
    except Exception as error:
        reason = ours(error)
        if reason.transient:
            raise
        for each in relay:
            _note(each, what, reason)
        if isinstance(reason, DefectError):
            raise _stopped(what, reason) from error
        raise _stopped(what, reason) from None


def say_way_out(error: object) -> None:
    """To be called by Airflow when a task has failed, after all else: the way out is the log's last line."""
    if isinstance(error, TaskStopped):
        log.error("way out: %s", error.way_out)


def _stopped(what: str, reason: SluiceError) -> TaskStopped:
    return TaskStopped(
        f"{what} has stopped: {type(reason).__name__}: {reason}",
        way_out=f"{reason.way_out}; then `sluice resume`, or unpause the DAG, which pauses when this run is over",
    )


def _note(relay: RelayLog, what: str, reason: SluiceError) -> None:
    failure = Failure(what, str(reason), reason.way_out, time.time_ns() // 1_000_000)
    try:
        relay.failures.note(failure)
    except (RelayError, OSError) as error:
        log.warning("why %s has stopped could not be written down for `sluice status`: %s", what, error)

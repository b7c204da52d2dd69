"""Call `[airflow] notify`: when a task has failed, and when a task has waited for a minute."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

from sluice.errors import SluiceError

__all__ = ["Notifier", "TaskWaits", "notified_of_waits"]

log = logging.getLogger("sluice")

LONG_WAITS = "sluice.waiting"
"""As `sluice.etl.retry` has it; its records come here from workers and agents, too."""


class TaskWaits(SluiceError):
    """A task has waited for a minute for something that may pass, and still does."""

    transient = True
    hint = "look at what it waits for; the task continues by itself"


class Notifier:
    """Call `[airflow] notify`, imported when it is called."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, context: Mapping[str, Any]) -> None:
        """Call it with a task's context."""
        target = resolve_name(self._path)
        (target() if isinstance(target, type) else target)(context)


@contextlib.contextmanager
def notified_of_waits(notify: str) -> Iterator[None]:
    """Have `notify` called for every long wait of this task; "" for nothing."""
    if not notify:
        yield
        return
    handler, logger = _Waits(Notifier(notify)), logging.getLogger(LONG_WAITS)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Waits(logging.Handler):
    """Hand records of long waits on, with the task's context."""

    def __init__(self, notifier: Notifier) -> None:
        super().__init__()
        self._notifier = notifier

    def emit(self, record: logging.LogRecord) -> None:
        """Call the notifier. What it raises is logged: the task goes on."""
        from airflow.sdk import get_current_context

        context: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # Airflow's own: this is no task
            context = dict(get_current_context())
        try:
            self._notifier(context | {"exception": TaskWaits(record.getMessage())})
        except Exception:
            log.exception("the notifier failed")

"""An Airflow run: whether its schedule began it, and until when its tasks work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def is_scheduled(dag_run: Any) -> bool:
    """Return whether the DAG's schedule began the run, which is as in a task's context."""
    return getattr(dag_run, "run_type", None) == "scheduled"


def run_began_s(dag_run: Any) -> float | None:
    """Return when a run began in Unix time; None if there is no run, or if it has not begun."""
    began = getattr(dag_run, "start_date", None)
    return began.timestamp() if began is not None else None


MIN_TASK_S = 10.0
"""The least time that a task works in s, even if its run's time is over.

That happens to a task that was cleared, or killed at the end.
"""


@dataclass(frozen=True, slots=True)
class RunDeadline:
    """The end of a run's tasks: `seconds` after the run began, whenever each one began.

    So a task that was killed and started again doesn't let the others wait for the rest of a time
    of its own.
    """

    seconds: float
    began_s: float
    """Unix time."""

    @classmethod
    def of(cls, seconds: float, began_s: float | None) -> RunDeadline:
        """Return the deadline of a run; one without a beginning (`run_began_s`) begins now."""
        return cls(seconds, began_s if began_s is not None else time.time())

    def left_s(self) -> float:
        """Return the seconds from now to it.

        Never more than the run's, though this machine's clock be behind the scheduler's, and never
        less than `MIN_TASK_S`, or the run's if those are fewer.
        """
        left = self.began_s + self.seconds - time.time()
        return min(self.seconds, max(left, MIN_TASK_S))

    def countdown(self) -> Callable[[], float]:
        """Return a function for the seconds left of what `left_s` is now; at the end it is <= 0."""
        end = time.monotonic() + self.left_s()
        return lambda: end - time.monotonic()

"""What an Airflow run tells: who asked for it by its id, and until when its tasks work."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

_SCHEDULED = "scheduled__"
"""So Airflow names the runs of a schedule; those that somebody triggers, and backfills, are named
otherwise.
"""


def is_scheduled(run_id: str) -> bool:
    """Whether nobody asked for the run: its DAG's schedule began it."""
    return run_id.startswith(_SCHEDULED)


MIN_TASK_S = 10.0
"""What a task works that was started when its run's time was nearly or long over: cleared, or
killed at the end.
"""


@dataclass(frozen=True, slots=True)
class RunDeadline:
    """Until when the tasks of a run work: `seconds` after the run began, all of them, whenever each
    one began. So one that was killed and started again doesn't let the others wait for the rest of
    a time of its own.
    """

    seconds: float
    began_s: float
    """Unix time."""

    @classmethod
    def from_dag_run(cls, seconds: float, dag_run: Any) -> RunDeadline:
        """`dag_run`: as in a task's context, None where there is no Airflow: then the run begins
        now.
        """
        began = getattr(dag_run, "start_date", None)
        return cls(seconds, began.timestamp() if began is not None else time.time())

    def left_s(self) -> float:
        """Seconds from now.

        Never more than the run's, though this machine's clock be behind the scheduler's, and never
        less than `MIN_TASK_S`, or the run's if those are fewer.
        """
        left = self.began_s + self.seconds - time.time()
        return min(self.seconds, max(left, MIN_TASK_S))

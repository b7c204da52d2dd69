"""``python -m deploy.start.airflow_scheduler``: Airflow's scheduler, whose tasks end with it.

Told to end, the scheduler itself would wait for its tasks, which go on for minutes, until somebody loses patience and
kills all of it. Here the tasks are ended: they may be at any time, and the next ones go on from what is durable.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from types import FrameType

import psutil

_SWEEP_S = 0.5
_PATIENCE_SWEEPS = 6
"""Then a task is killed."""


def tasks_of(scheduler: int) -> list[psutil.Process]:
    """The processes in which tasks run: children of the executor's workers, which are the scheduler's children."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        for worker in psutil.Process(scheduler).children():
            with contextlib.suppress(psutil.Error):
                found += worker.children(recursive=True)
    return found


def end_tasks(scheduler: subprocess.Popen[bytes]) -> None:
    """Until the scheduler is gone: a task may still come from its queue."""
    told: dict[int, int] = {}
    while scheduler.poll() is None:
        for task in tasks_of(scheduler.pid):
            times = told[task.pid] = told.get(task.pid, 0) + 1
            with contextlib.suppress(psutil.Error):
                if times == 1:
                    task.terminate()
                elif times > _PATIENCE_SWEEPS:
                    task.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            scheduler.wait(_SWEEP_S)


def main() -> int:
    """The scheduler's exit code; 0 if it was told to end."""
    asked = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    with subprocess.Popen(["airflow", "scheduler", "--skip-serve-logs", *sys.argv[1:]]) as scheduler:
        while scheduler.poll() is None and not asked.wait(0.2):
            pass
        if asked.is_set() and scheduler.poll() is None:
            scheduler.terminate()
            end_tasks(scheduler)
    return 0 if asked.is_set() else abs(scheduler.returncode)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m sluice.airflow.scheduler``: Airflow's scheduler, whose tasks end with it.

When asked to end, the scheduler itself would wait for its tasks, which go on for minutes, until
the supervisor's grace period is over and it kills all of it. Here the tasks are ended: they may be
at any time, and the next ones go on from what is durable.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType

import psutil

_SWEEP_S = 0.5
_PATIENCE_SWEEPS = 6
"""Then a task is killed."""
_LINGERING_SWEEPS = 20
"""Without a task: then the executor's workers are killed, and after as long again the scheduler."""


def tasks_of(workers: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the processes in which tasks run: children of the executor's workers."""
    found: list[psutil.Process] = []
    for worker in workers:
        with contextlib.suppress(psutil.Error):
            found += worker.children(recursive=True)
    return found


def end_tasks(scheduler: subprocess.Popen[bytes]) -> None:
    """End tasks until the scheduler is gone: a task may still come from its queue.

    The scheduler waits without a limit for its executor's workers (its children), and a worker may
    be one that never ends: it asks Airflow's API to let a task begin, and that is about to end as
    well. So neither is waited for longer than ``_LINGERING_SWEEPS`` without a task. What was in
    their hands is queued again by the next scheduler.
    """
    told: dict[int, int] = {}
    lingering = 0
    while scheduler.poll() is None:
        workers: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            workers = psutil.Process(scheduler.pid).children()
        tasks = tasks_of(workers)
        for task in tasks:
            times = told[task.pid] = told.get(task.pid, 0) + 1
            with contextlib.suppress(psutil.Error):
                if times == 1:
                    task.terminate()
                elif times > _PATIENCE_SWEEPS:
                    task.kill()
        lingering = 0 if tasks else lingering + 1
        if lingering == _LINGERING_SWEEPS:
            _kill(workers, "workers of Airflow's executor run no task and don't end: killed")
        elif lingering == 2 * _LINGERING_SWEEPS:
            _kill([*workers, scheduler], "Airflow's scheduler doesn't end: killed")
        with contextlib.suppress(subprocess.TimeoutExpired):
            scheduler.wait(_SWEEP_S)


def _kill(processes: Sequence[psutil.Process | subprocess.Popen[bytes]], why: str) -> None:
    print(why, file=sys.stderr, flush=True)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def main() -> int:
    """Run the scheduler, and return its exit code; 0 after a request to end."""
    asked = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    with subprocess.Popen(
        [sys.executable, "-m", "airflow", "scheduler", "--skip-serve-logs", *sys.argv[1:]]
    ) as scheduler:
        while scheduler.poll() is None and not asked.wait(0.2):
            pass
        if asked.is_set() and scheduler.poll() is None:
            scheduler.terminate()
            end_tasks(scheduler)
    return 0 if asked.is_set() else abs(scheduler.returncode)


if __name__ == "__main__":
    sys.exit(main())

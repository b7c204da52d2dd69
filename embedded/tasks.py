"""The processes in which the tasks of a stack's DAGs work."""

from __future__ import annotations

import contextlib

import psutil

from embedded import processes
from embedded.stack import Stack


def task_processes(stack: Stack) -> list[psutil.Process]:
    """Those of Airflow's tasks: children of the LocalExecutor's workers, which are the scheduler's children."""
    started = stack.state().parts.get("airflow-scheduler")
    if started is None:
        return []
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        for worker in psutil.Process(started.process.pid).children():
            with contextlib.suppress(psutil.Error):
                found += [task for task in worker.children() if task.status() != psutil.STATUS_ZOMBIE]
    return found


def residents(stack: Stack) -> list[psutil.Process]:
    """Those that land and apply for the tasks of the DAG `replicate`, and outlast them (`etl.resident`)."""
    found = []
    for pid in processes.marked(stack.home):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.cmdline()[1:3] == ["-m", "etl.resident"]:
                found.append(process)
    return found

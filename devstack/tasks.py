"""The processes in which the tasks of a stack's DAGs work."""

from __future__ import annotations

import contextlib

import psutil

from sluice.devstack import processes
from sluice.devstack.stack import Stack


def task_processes(stack: Stack) -> list[psutil.Process]:
    """Return the processes of Airflow's tasks.

    They are children of the LocalExecutor's workers, which are the scheduler's children.
    """
    started = stack.state().parts.get("airflow-scheduler")
    if started is None:
        return []
    scheduler = started.process.pid
    parents: dict[psutil.Process, int] = {}
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(scheduler).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has just ended
                if process.status() != psutil.STATUS_ZOMBIE:
                    parents[process] = process.ppid()
    workers = {process.pid for process, parent in parents.items() if parent == scheduler}
    return [process for process, parent in parents.items() if parent in workers]


def worker_processes(stack: Stack) -> list[psutil.Process]:
    """Return the processes that land and apply for the tasks of the DAG `replicate`.

    They outlast the tasks (`sluice.etl.tasks.worker`).
    """
    found = []
    for pid in filter(processes.is_worker_process, processes.tagged(stack.home)):
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(pid))
    return found

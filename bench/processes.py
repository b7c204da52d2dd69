"""CPU time and memory of the processes of a benchmark, by what they are.

They replicate, or run Spark jobs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil

from sluice.devstack import Stack
from sluice.devstack.launch import PUMP_NAMES
from sluice.devstack.replay import task_processes, worker_processes


class Peak:
    """A context that keeps the largest of every size that `rss` gives, ten times a second.

    The sizes are bytes, by name.
    """

    def __init__(self, rss: Callable[[], dict[str, int]]) -> None:
        self._rss = rss
        self._most: dict[str, int] = {}
        self.own_cpu_s = 0.0
        """CPU time that looking has cost this process, once it is over."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)

    def __enter__(self) -> dict[str, int]:
        self._thread.start()
        return self._most

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            try:
                for name, size in self._rss().items():
                    self._most[name] = max(self._most.get(name, 0), size)
            except psutil.NoSuchProcess:  # a worker came to its end while it was looked at
                pass
            if self._over.wait(0.1):
                self.own_cpu_s = time.thread_time()
                return


def replicating(stack: Stack) -> dict[str, list[psutil.Process]]:
    """Return the processes of a stack that replicates under Airflow.

    `task` are those of landing and applying, `Airflow` its own, which would run without any
    pipeline.
    """
    parts = {
        name: psutil.Process(started.process.pid) for name, started in stack.state().parts.items()
    }
    tasks = [*task_processes(stack), *worker_processes(stack)]
    airflow = [
        each
        for name, part in parts.items()
        if name.startswith("airflow-")
        for each in _family(part)
    ]
    return {
        "JVM": [parts["spark"]],
        "spark-worker": parts["spark"].children(recursive=True),
        "pump": [parts[name] for name in PUMP_NAMES],
        "task": tasks,
        "Airflow": [each for each in airflow if each not in tasks],
        "MariaDB": [parts["mariadb"]],
    }


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def cpu_s(stack: Stack) -> dict[str, float]:
    """Return the seconds of CPU time so far, of each kind in `replicating`.

    Airflow's are with those of its children that have ended, tasks of a run that is over among
    them.
    """
    return {
        name: sum(_used_s(each, ended=name == "Airflow") for each in found)
        for name, found in replicating(stack).items()
    }


def _used_s(process: psutil.Process, *, ended: bool) -> float:
    try:
        return float(sum(process.cpu_times()[: 4 if ended else 2]))
    except psutil.NoSuchProcess:  # since it was listed
        return 0.0


class SparkProcesses:
    """The measuring process, Spark, and its Python workers; a benchmark adds what else it needs."""

    def __init__(self, stack: Stack) -> None:
        self._spark = psutil.Process(stack.state().parts["spark"].process.pid)
        self._client = psutil.Process()

    def cpu(self) -> dict[str, float]:
        """Return the seconds so far; `workers` are Spark's Python workers."""
        return {
            "client": sum(self._client.cpu_times()[:2]),
            "JVM": sum(self._spark.cpu_times()[:2]),
            "workers": sum(sum(each.cpu_times()[:2]) for each in self._workers()),
        }

    def rss(self) -> dict[str, int]:
        """Return bytes now; of the largest where there are several."""
        return {
            "client": self._client.memory_info().rss,
            "JVM": self._spark.memory_info().rss,
            "worker": max((each.memory_info().rss for each in self._workers()), default=0),
        }

    def peak(self) -> Peak:
        """Return a context that gives the largest `rss` inside of it."""
        return Peak(self.rss)

    def _workers(self) -> list[psutil.Process]:
        return [child for child in self._spark.children(recursive=True) if child.is_running()]


class DatabaseProcesses(SparkProcesses):
    """The processes, with the database."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self._server = psutil.Process(stack.state().parts["mariadb"].process.pid)

    def cpu(self) -> dict[str, float]:
        """Return seconds of CPU time so far, by process, MariaDB among them."""
        return super().cpu() | {"MariaDB": sum(self._server.cpu_times()[:2])}

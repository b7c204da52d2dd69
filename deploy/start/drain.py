#!/usr/bin/env python
"""Drain this container's Spark worker, or executor, before Kubernetes ends it.

    python -m deploy.start.drain

Spark is told by SIGPWR (`spark.decommission.enabled`): no further task begins here, those that run
are finished, and shuffled rows are handed on. This returns once no executor is left. It is the
preStop hook of Spark's pods. Those of a driver on Kubernetes name it as a program without
arguments (`spark.kubernetes.decommission.script`), so this file is one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_POD_EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_POLL_INTERVAL_S = 0.5


def drain(processes: Callable[[], Iterable[int]]) -> None:
    """Drain the worker or executor among these processes, and wait until no executor is left."""
    for pid in _running(processes(), _WORKER, _POD_EXECUTOR):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGPWR)
    while _running(processes(), _EXECUTOR, _POD_EXECUTOR):
        time.sleep(_POLL_INTERVAL_S)


def all_processes() -> list[int]:
    """Return all processes of the container."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _running(pids: Iterable[int], *mains: str) -> list[int]:
    """Return those that run one of these main classes."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if any(main in words for main in mains):
                found.append(pid)
    return found


if __name__ == "__main__":
    drain(all_processes)

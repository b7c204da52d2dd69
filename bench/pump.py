"""Measure a pump's WriteBinlog under load, with one live reader.

etcd, the stand-in cluster and one pump run, with the sorter, the index and durable writes. The
reader follows all the while: a Drainer that pulls, or a landing pipeline that reads windows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import psutil

from sluice.bench.pull_reader import PullReader
from sluice.bench.pump_load import Load, run_case
from sluice.devstack import LOOPBACK, Stack
from sluice.tidb import PDClient, PumpReader

_PARTS = ("etcd", "cluster", "pump-1")


def measure(
    stack: Stack, cases: Sequence[str], seconds: float, reads: str, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Run `cases` (callers x payload bytes) over 4 connections, with a reader; one dict a case.

    The reader `reads` "pull" or "window". Raises StackError, RuntimeError.
    """
    stack.down()
    stack.wipe("etcd", "cluster", "pump-1")
    results = []
    try:
        stack.up(_PARTS, report=report, live=True)
        site = stack.site()
        address = f"{LOOPBACK}:{site.ports['pump-1']}"
        pd = PDClient(f"http://{LOOPBACK}:{site.ports['cluster']}")
        process = psutil.Process(stack.state().parts["pump-1"].process.pid)
        pulls = (
            PullReader(LOOPBACK, site.ports["pump-1"], pd.cluster_id, 0)
            if reads == "pull"
            else _WindowReader(address, pd.cluster_id)
        )
        with pulls as reader:
            for case in cases:
                before, read_before = process.cpu_times(), reader.messages
                result = run_case(address, pd.cluster_id, case, seconds, Load())
                after = process.cpu_times()
                pump_cpu = (
                    after.user + after.system - before.user - before.system
                ) / result.seconds
                results.append(
                    asdict(result)
                    | {
                        "pump_cpu": round(pump_cpu, 2),
                        "pump_rss_mib": round(process.memory_info().rss / 2**20),
                        "reader": reads,
                        "read_meanwhile": reader.messages - read_before,
                        "limit": "load generator"
                        if result.load_cpu > 0.9 and pump_cpu < 0.9
                        else "pump and machine",
                    }
                )
            if isinstance(reader, PullReader) and not reader.alive:
                raise RuntimeError("the reader's stream ended in the middle of the benchmark")
        pd.close()
    finally:
        stack.down()
    return results


def measure_another(
    address: str, cluster_id: int, cases: Sequence[str], seconds: float
) -> list[dict[str, Any]]:
    """Put the same load on a pump that runs already, on any host and in any stack.

    Nothing reads it meanwhile.
    """
    results = []
    for case in cases:
        result = run_case(address, cluster_id, case, seconds, Load())
        results.append(
            asdict(result)
            | {"limit": "load generator" if result.load_cpu > 0.9 else "pump and machine"}
        )
    return results


class _WindowReader:
    """Follow the pump window by window from a thread, and count."""

    def __init__(self, address: str, cluster_id: int) -> None:
        self.messages = 0
        self._reader = PumpReader(address, cluster_id)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="window-reader", daemon=True)

    def __enter__(self) -> _WindowReader:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(10)
        self._reader.close()

    def _run(self) -> None:
        lo = 0
        while not self._over.wait(0.05):
            bounds = self._reader.bounds(lo, 0, max_transactions=5_000)
            if bounds.hi > lo:
                self.messages += sum(batch.num_rows for batch in self._reader.read(lo, bounds.hi))
                lo = bounds.hi

"""Lag: from a transaction's commit in the stand-in TiDB until its row is visible in MariaDB.

Live traffic at a steady rate, two pumps; a prober reads the downstream table over a connection of its own, as a user
would, and notes when each row appeared. Counting begins when the pipeline is warm: when rows have been arriving within
two seconds of their commit for some seconds.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pymysql

from embedded import Stack
from embedded.control import AirflowClient, ClusterControl
from embedded.launch import connect
from embedded.run import fresh_stack, wait_pipeline
from embedded.state import StackError

_WARM_LAG_MS = 2_000
_WARM_FOR_S = 5.0
_WARM_UP_AT_MOST_S = 90.0
_PROBE_S = 0.004
_PATIENCE_S = 120.0
_QUERY = "SELECT id FROM sluice_load.txn WHERE id > %s ORDER BY id"


class _Probe:
    """Reads the downstream table again and again and notes when each transaction's row was there (Unix ms)."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self._moved = time.monotonic()
        self.last = 0
        """Every transaction through this number has arrived; a later one may commit, and arrive, before an earlier one.
        """
        self.seen: dict[int, float] = {}

    def look(self) -> None:
        """One query; returns after `_PROBE_S` at the earliest. Raises StackError if nothing has arrived for long."""
        began = time.perf_counter()
        with self._database.cursor() as cursor, contextlib.suppress(pymysql.err.ProgrammingError):  # no such table yet
            cursor.execute(_QUERY, (self.last,))
            now = time.time() * 1000
            for (number,) in cursor.fetchall():
                if number not in self.seen:
                    self.seen[number] = now
                    self._moved = time.monotonic()
            while self.last + 1 in self.seen:
                self.last += 1
        if time.monotonic() - self._moved > _PATIENCE_S:
            raise StackError(f"nothing arrived downstream for {_PATIENCE_S:.0f} s after transaction {self.last}")
        time.sleep(max(0.0, _PROBE_S - (time.perf_counter() - began)))


def _committed(control: ClusterControl) -> dict[int, float]:
    return {number: wall_ms for _, wall_ms, number in control.numbered_commits() if number is not None}


def _wait_warm(probe: _Probe, control: ClusterControl) -> int:
    """The number of the transaction after which the pipeline counts as warm."""
    began = late = time.monotonic()
    while time.monotonic() - late < _WARM_FOR_S and time.monotonic() - began < _WARM_UP_AT_MOST_S:
        before = probe.last
        probe.look()
        if probe.last == before:
            if time.monotonic() - late > _WARM_LAG_MS / 1000 and not probe.seen:
                late = time.monotonic()
            continue
        committed = _committed(control)
        if probe.seen[probe.last] - committed[probe.last] > _WARM_LAG_MS:
            late = time.monotonic()
    return probe.last


@dataclass(slots=True)
class LagResult:
    """Lags in ms."""

    rate: float
    rows: int
    samples: int = 0
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    histogram: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    """DAG runs that took part: above 1 means that the change from one run to the next is in the figures."""


_BOUNDS_MS = (50, 100, 150, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000)


def measure(stack: Stack, rate: float, samples: int, rows: int, report: Callable[[str], None]) -> LagResult:
    """Run the benchmark in a stack of its own: `rate` transactions/s of `rows` row changes. Raises StackError."""
    result = LagResult(rate=rate, rows=rows)
    with fresh_stack(stack, None, report):
        site = stack.site()
        airflow = AirflowClient(stack.home, site.ports["airflow"])
        wait_pipeline(stack, airflow)
        control = ClusterControl(site.ports["cluster-control"])
        control.workload({"rate": rate, "transactions": None, "rows": rows})
        report(f"{rate:g} transactions/s of {rows} rows, warming up")
        with contextlib.closing(connect(site.ports["mariadb"])) as database:
            probe = _Probe(database)
            first = _wait_warm(probe, control)
            report(f"warm after transaction {first}; taking {samples} samples")
            while probe.last < first + samples:
                probe.look()
            result.runs = airflow.run_count()
        control.stop()
        committed = _committed(control)
    lags = sorted(probe.seen[number] - committed[number] for number in range(first + 1, first + samples + 1))
    cuts = statistics.quantiles(lags, n=100, method="inclusive")
    result.samples = len(lags)
    result.p50_ms, result.p95_ms, result.p99_ms, result.max_ms = cuts[49], cuts[94], cuts[98], lags[-1]
    below = 0
    for bound in (*_BOUNDS_MS, float("inf")):
        count = sum(1 for lag in lags if lag <= bound) - below
        if count:
            result.histogram[f"<= {bound:g} ms" if bound != float("inf") else f"> {_BOUNDS_MS[-1]} ms"] = count
        below += count
    return result

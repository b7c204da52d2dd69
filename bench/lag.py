"""Lag: from a transaction's commit in the stand-in TiDB until its row is visible in MariaDB.

Live traffic at a steady rate, two pumps; a prober reads the downstream table over a connection of its own, as a user
would, and notes when each row appeared. The first seconds, in which the pipeline warms up, aren't counted.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from embedded import Stack
from embedded.control import AirflowClient, ClusterControl
from embedded.launch import connect
from embedded.run import fresh_stack, wait_pipeline
from embedded.state import StackError

_WARM_UP_S = 10.0
_PROBE_S = 0.004
_PATIENCE_S = 120.0
_QUERY = "SELECT id FROM sluice_load.txn WHERE id > %s ORDER BY id"
_NOT_YET = {1049, 1146}  # unknown database, no such table


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
    import pymysql

    warm_up = max(1, int(rate * _WARM_UP_S))
    result = LagResult(rate=rate, rows=rows)
    with fresh_stack(stack, None, report):
        site = stack.site()
        airflow = AirflowClient(stack.home, site.ports["airflow"])
        wait_pipeline(stack, airflow)
        control = ClusterControl(site.ports["cluster-control"])
        control.workload({"rate": rate, "transactions": warm_up + samples, "rows": rows})
        report(f"{rate:g} transactions/s of {rows} rows; {warm_up} to warm up, then {samples} samples")
        seen: dict[int, float] = {}
        with contextlib.closing(connect(site.ports["mariadb"])) as database, database.cursor() as cursor:
            last, moved = 0, time.monotonic()
            while last < warm_up + samples:
                began = time.perf_counter()
                try:
                    cursor.execute(_QUERY, (last,))
                    now = time.time() * 1000
                    for (number,) in cursor.fetchall():
                        seen[number] = now
                        last, moved = number, time.monotonic()
                except pymysql.err.ProgrammingError as error:
                    if error.args[0] not in _NOT_YET:
                        raise
                if time.monotonic() - moved > _PATIENCE_S:
                    raise StackError(f"nothing arrived downstream for {_PATIENCE_S:.0f} s after transaction {last}")
                time.sleep(max(0.0, _PROBE_S - (time.perf_counter() - began)))
        committed = {number: wall_ms for _, wall_ms, number in control.numbered_commits() if number is not None}
        result.runs = airflow.run_count()
    lags = sorted(seen[number] - committed[number] for number in seen if number > warm_up)
    if len(lags) < samples:
        raise StackError(f"only {len(lags)} of {samples} samples arrived")
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

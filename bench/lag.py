"""Lag: from a transaction's commit in the stand-in TiDB until its row is visible in MariaDB.

Live traffic at a steady rate, two pumps; a prober reads the downstream table over a connection of
its own, as a user would, and notes when each row appeared. Counting begins when the pipeline is
warm: when rows have been arriving within two seconds of their commit for some seconds.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pymysql

from sluice.bench.processes import cpu_s
from sluice.devstack import Stack
from sluice.devstack.control import AirflowClient, ClusterControl
from sluice.devstack.fresh_stack import fresh_stack, wait_pipeline
from sluice.devstack.launch import connect
from sluice.devstack.repository import DAGS
from sluice.devstack.state import StackError
from sluice.etl.settings import load_settings

_WARM_LAG_MS = 2_000
_WARM_FOR_S = 5.0
_WARM_UP_AT_MOST_S = 90.0
_PROBE_S = 0.004
_LATE_MS = 1_000
_PATIENCE_S = 120.0
TURNS = 2
_SETTLES_S = 5.0
_QUERY = "SELECT id FROM sluice_load.txn WHERE id > %s ORDER BY id"


class LagProbe:
    """Read the downstream table again and again, and note when each transaction's row was there.

    The times are in Unix ms.
    """

    def __init__(self, database: Any) -> None:
        self._database = database
        self._moved = time.monotonic()
        self.last = 0
        """Every transaction through this number has arrived.

        A later one may commit, and arrive, before an earlier one.
        """
        self.seen: dict[int, float] = {}

    def look(self) -> None:
        """Query once; return after `_PROBE_S` at the earliest.

        Raises StackError if nothing has arrived for long.
        """
        began = time.perf_counter()
        # no such table yet
        with self._database.cursor() as cursor, contextlib.suppress(pymysql.err.ProgrammingError):
            cursor.execute(_QUERY, (self.last,))
            now = time.time() * 1000
            for (number,) in cursor.fetchall():
                if number not in self.seen:
                    self.seen[number] = now
                    self._moved = time.monotonic()
            while self.last + 1 in self.seen:
                self.last += 1
        if time.monotonic() - self._moved > _PATIENCE_S:
            raise StackError(
                f"nothing arrived downstream for {_PATIENCE_S:.0f} s after transaction {self.last}"
            )
        time.sleep(max(0.0, _PROBE_S - (time.perf_counter() - began)))


def commit_times(control: ClusterControl) -> dict[int, float]:
    """Return when each numbered transaction was committed (Unix ms), by its number."""
    return {
        number: wall_ms for _, wall_ms, number in control.numbered_commits() if number is not None
    }


def wait_warm(probe: LagProbe, control: ClusterControl) -> int:
    """Return the number of the transaction after which the pipeline counts as warm."""
    began = late = time.monotonic()
    while time.monotonic() - late < _WARM_FOR_S and time.monotonic() - began < _WARM_UP_AT_MOST_S:
        before = probe.last
        probe.look()
        if probe.last == before:
            if time.monotonic() - late > _WARM_LAG_MS / 1000 and not probe.seen:
                late = time.monotonic()
            continue
        committed = commit_times(control)
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
    """DAG runs that took part.

    Above 1 means that the change from one run to the next is in the figures.
    """
    ddls: int = 0
    """Columns that were added meanwhile."""
    late: list[list[float]] = field(default_factory=list)
    """Times at which lag went above a second.

    Each has how many s after sampling began it was, and the largest lag.
    """
    cpu: dict[str, float] = field(default_factory=dict)
    """Per cent of a core, while samples were taken, of each kind of processes.

    Negative where a process was started again.
    """
    idle_cpu: dict[str, float] = field(default_factory=dict)
    """The same without traffic."""
    cpu_s_per_1000: dict[str, float] = field(default_factory=dict)
    """CPU seconds for a thousand transactions, while samples were taken."""
    windows_per_s: float = 0.0


BOUNDS_MS = (50, 100, 150, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000)


class ProcessCpu:
    """CPU time of the processes from now on."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._began, self._before = time.monotonic(), cpu_s(stack)

    def used(self) -> dict[str, float]:
        """Return per cent of a core since the start."""
        after, seconds = cpu_s(self._stack), time.monotonic() - self._began
        return {
            name: round(100 * (after[name] - self._before[name]) / seconds, 1) for name in after
        }


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a measurement: over `samples`, with a DDL every `ddl_s` (0: none).

    Then, for `idle_s`, without traffic.
    """

    samples: int
    ddl_s: float = 0.0
    idle_s: float = 0.0


class _Ddl:
    """A column is added to the table that is measured, every so often, by a thread."""

    def __init__(self, control: ClusterControl, every_s: float) -> None:
        self._control, self._every_s = control, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddl", daemon=True)
        self.made = 0
        self.failure: StackError | None = None

    def __enter__(self) -> Self:
        if self._every_s:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._every_s:
            self._thread.join()
        if self.failure is not None and not any(exc):
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                self._control.add_column("sluice_load", "txn", f"c{self.made}")
                self.made += 1
        except StackError as error:
            self.failure = error


def dags_with_runs_of(seconds: int, folder: Path) -> Path:
    """Make a folder with the DAG `replicate`, whose runs are `seconds` long, and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = (DAGS / "replicate.py").read_text(encoding="utf-8")
    changed = re.sub(r'("run_seconds": Param\(\s*)None', rf"\g<1>{seconds}", text)
    (folder / "replicate.py").write_text(changed, encoding="utf-8")
    return folder


def measure(
    stack: Stack, traffic: LagResult, course: Course, report: Callable[[str], None]
) -> LagResult:
    """Run the benchmark in a stack of its own, at the rate and with the rows of `traffic`.

    `traffic` is filled. Raises StackError.
    """
    result, rate, rows, samples, idle_s = (
        traffic,
        traffic.rate,
        traffic.rows,
        course.samples,
        course.idle_s,
    )
    with fresh_stack(stack, None, report):
        site = stack.site()
        airflow = AirflowClient(stack.home, site.ports["airflow"])
        wait_pipeline(stack, airflow)
        control = ClusterControl(site.ports["cluster-control"])
        control.workload({"rate": rate, "transactions": None, "rows": rows})
        report(f"{rate:g} transactions/s of {rows} rows, warming up")
        with contextlib.closing(connect(site)) as database:
            probe = LagProbe(database)
            first = wait_warm(probe, control)
            report(f"warm after transaction {first}; taking {samples} samples")
            cpu, began = ProcessCpu(stack), time.monotonic()
            with _Ddl(control, course.ddl_s) as ddl:
                while probe.last < first + samples:
                    probe.look()
            result.cpu, result.runs, result.ddls = cpu.used(), airflow.run_count(), ddl.made
            taken_s = time.monotonic() - began
        control.stop()
        committed = commit_times(control)
        if idle_s:
            report(f"without traffic for {idle_s:g} s")
            time.sleep(_SETTLES_S)
            cpu = ProcessCpu(stack)
            time.sleep(idle_s)
            result.idle_cpu = cpu.used()
        result.cpu_s_per_1000 = {
            name: round(10 * used * taken_s / samples, 3) for name, used in result.cpu.items()
        }
        ends = [
            ts
            for ts, _, number in control.numbered_commits()
            if number in (first + 1, first + samples)
        ]
        result.windows_per_s = round(_windows(stack, min(ends), max(ends)) / taken_s, 1)
    numbers = range(first + 1, first + samples + 1)
    result.late = _late([(committed[number], probe.seen[number]) for number in numbers])
    summarize(result, [probe.seen[number] - committed[number] for number in numbers])
    return result


def _windows(stack: Stack, from_ts: int, to_ts: int) -> int:
    """Count the landed windows with changes between two commits (TSO)."""
    relay = load_settings(stack.home / "sluice.toml").open_relay()
    return sum(1 for window in relay.windows(from_ts, to_ts) if window.changes)


def _late(times: list[tuple[float, float]]) -> list[list[float]]:
    """Return the times at which arrivals were above `_LATE_MS` late.

    Each is [s since the first commit, ms]; `times` are of commit and arrival (ms).
    """
    found: list[list[float]] = []
    began, last = times[0][0], -1e9
    for committed, seen in times:
        if seen - committed <= _LATE_MS:
            continue
        if committed - last > _LATE_MS:
            found.append([round((committed - began) / 1000, 1), 0.0])
        found[-1][1] = max(found[-1][1], round(seen - committed, 1))
        last = committed
    return found


def summarize(result: LagResult, found: list[float]) -> None:
    """Put the quantiles of lags (ms) into `result`."""
    lags = sorted(found)
    cuts = statistics.quantiles(lags, n=100, method="inclusive")
    result.samples = len(lags)
    result.p50_ms, result.p95_ms, result.p99_ms, result.max_ms = (
        cuts[49],
        cuts[94],
        cuts[98],
        lags[-1],
    )
    below = 0
    for bound in (*BOUNDS_MS, float("inf")):
        count = sum(1 for lag in lags if lag <= bound) - below
        if count:
            result.histogram[
                f"<= {bound:g} ms" if bound != float("inf") else f"> {BOUNDS_MS[-1]} ms"
            ] = count
        below += count

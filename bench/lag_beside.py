"""Measure lag while something else works: a backfill, or the archive in a second process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from sluice.bench.lag import TURNS, LagProbe, LagResult, commit_times, summarize, wait_warm
from sluice.devstack import Stack
from sluice.devstack.control import AirflowClient, ClusterControl
from sluice.devstack.fresh_stack import fresh_stack, wait_pipeline
from sluice.devstack.launch import connect
from sluice.devstack.state import StackError
from sluice.etl.copy.backfill import cancel_backfill
from sluice.etl.settings import Settings, load_settings
from sluice.relay.jobs import FINAL_STATES, Jobs, Runner


@dataclass(slots=True)
class BesideResult:
    """Lags in ms without a backfill and beside one, in turns of one run; what the backfills did."""

    alone: LagResult
    beside: LagResult
    rows: int = 0
    chunks: int = 0
    seconds: float = 0.0

    @property
    def added_p95_ms(self) -> float:
        """Return how much later changes come while a backfill runs."""
        return self.beside.p95_ms - self.alone.p95_ms


class _Backfills:
    """Run `sluice backfill` of the load table, again and again, as a process."""

    def __init__(self, stack: Stack, result: BesideResult) -> None:
        self._stack = stack
        self._result = result
        self._stop = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="backfills", daemon=True)
        self.began = threading.Event()
        self.failure = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
        self._thread.join()

    def _run(self) -> None:
        config = str(self._stack.home / "sluice.toml")
        arguments = ["backfill", "--config", config, "--table", "sluice_load.load_1", "--json"]
        while not self._stop.is_set() and not self.failure:
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", "cli", *arguments],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert process.stderr is not None
            printed = ""
            for line in process.stderr:
                printed = line
                if line.startswith("job "):  # it is at work
                    break
            self.began.set()
            began = time.monotonic()
            more = process.communicate()[1]
            if process.returncode and not self._stop.is_set():
                self.failure = printed + more
            elif printed.startswith("job "):
                self._note(load_settings(config), printed.split()[1], time.monotonic() - began)

    def _note(self, settings: Settings, name: str, seconds: float) -> None:
        """Add what a job did until it was over, or the turn was."""
        job = Jobs.for_pipeline(settings.open_relay()).get(name)
        status = job.status()
        done = status.progress.in_all.done
        self._result.rows += done.rows
        self._result.chunks += done.chunks
        self._result.seconds += seconds
        if status.state not in FINAL_STATES:
            cancel_backfill(settings, name, Runner("sluice bench lag"))


def measure_beside_backfill(
    stack: Stack, rate: float, samples: int, table_rows: int, report: Callable[[str], None]
) -> BesideResult:
    """Run the benchmark in a stack of its own, in turns without and with a backfill.

    The backfill is of a table with `table_rows` rows; half of the samples are taken each way.
    Raises StackError.
    """
    result = BesideResult(LagResult(rate, 1), LagResult(rate, 1))
    with fresh_stack(stack, None, report):
        site = stack.site()
        wait_pipeline(stack, AirflowClient(stack.home, site.ports["airflow"]))
        control = ClusterControl(site.ports["cluster-control"])
        with contextlib.closing(connect(site)) as database:
            probe = LagProbe(database)
            fill = max(table_rows // 999, 1)
            report(f"filling the table with {fill * 999:,} rows")
            control.workload({"rate": "max", "transactions": fill, "rows": 1000, "updates": 0})
            while probe.last < fill:
                probe.look()
            control.stop()
            control.workload({"rate": rate, "transactions": None, "rows": 1})
            wait_warm(probe, control)
            _take_turns(
                result, probe, control, samples, _Turns(lambda: _Backfills(stack, result), report)
            )
        control.stop()
    return result


def measure_beside_archive(
    stack: Stack, rate: float, samples: int, every_s: float, report: Callable[[str], None]
) -> BesideResult:
    """Run the same in turns without and with archiving, a pass every `every_s`.

    The stack's own DAG `archive` must make none: [archive] every. `rows` are the changes archived,
    `chunks` the segments. Raises StackError.
    """
    result = BesideResult(LagResult(rate, 1), LagResult(rate, 1))
    with fresh_stack(stack, None, report):
        site = stack.site()
        wait_pipeline(stack, AirflowClient(stack.home, site.ports["airflow"]))
        control = ClusterControl(site.ports["cluster-control"])
        control.workload({"rate": rate, "transactions": None, "rows": 1})
        with contextlib.closing(connect(site)) as database:
            probe = LagProbe(database)
            wait_warm(probe, control)
            _take_turns(
                result,
                probe,
                control,
                samples,
                _Turns(lambda: _Archiving(stack, result, every_s), report),
            )
        control.stop()
    return result


@dataclass(frozen=True, slots=True)
class _Turns:
    beside: Callable[[], _Backfills | _Archiving]
    report: Callable[[str], None]


def _take_turns(
    result: BesideResult, probe: LagProbe, control: ClusterControl, samples: int, turns: _Turns
) -> None:
    """Measure lags in turns alone and beside something, half of the samples each."""
    lags: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * TURNS):
        is_beside = turn % 2 == 1
        with turns.beside() if is_beside else contextlib.nullcontext() as other:
            while other is not None and not other.began.is_set():
                probe.look()
            first, last = probe.last, probe.last + samples // (2 * TURNS)
            while probe.last < last:
                probe.look()
        if other is not None and other.failure:
            raise StackError(f"what lag is measured beside has failed: {other.failure}")
        committed = commit_times(control)
        lags[is_beside] += [
            probe.seen[number] - committed[number] for number in range(first + 1, last + 1)
        ]
        turns.report(f"turn {turn + 1} of {2 * TURNS}{', beside it' if is_beside else ''}")
    summarize(result.alone, lags[False])
    summarize(result.beside, lags[True])


_ARCHIVING = """
import contextlib, sys, time
from sluice.etl.history.archive.archiver import QUIET_MS, Archiver
from sluice.etl.settings import load_settings
with contextlib.closing(Archiver(load_settings(sys.argv[1]))) as archiver:
    archiver.through()
    print("began", flush=True)
    while True:
        time.sleep(float(sys.argv[2]))
        began = time.monotonic()
        archiver.through(quiet_ms=QUIET_MS)
        done = archiver.summary
        print(done.changes, done.segments, time.monotonic() - began, flush=True)
"""


class _Archiving:
    """Passes of the archive, as the DAG's task makes them, in a process of its own."""

    def __init__(self, stack: Stack, result: BesideResult, every_s: float) -> None:
        self._arguments = [
            sys.executable,
            "-c",
            _ARCHIVING,
            str(stack.home / "sluice.toml"),
            str(every_s),
        ]
        self._result = result
        self.began = threading.Event()
        self.failure = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._thread = threading.Thread(target=self._follow, name="archiving", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is not None:
            self.failure = f"archiving ended with {self._process.returncode}"
        self._process.terminate()
        self._thread.join()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        base = self._result.rows, self._result.chunks
        for line in self._process.stdout:
            self.began.set()
            if line != "began\n":
                changes, segments, seconds = line.split()
                self._result.rows, self._result.chunks = (
                    base[0] + int(changes),
                    base[1] + int(segments),
                )
                self._result.seconds += float(seconds)
        self.began.set()

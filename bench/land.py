"""Measure how fast a backlog is landed, how that grows with the backlog, and in how much memory.

etcd, the stand-in cluster, the pumps (two, unless SLUICE_PUMPS gives another number) and Spark
run; nothing else. The recording is sent and landed first in small windows, which warms all of it
up: a JVM that has run a dozen jobs needs three times the CPU time of one that has run a hundred.
Then a backlog is written into the pumps (bench/backlog.py), and landed by `sluice.etl.landing` in
this process with the default limits, once for each size. Measured is from when the first window
was committed until the last but one was: at both times the job of the one after it is under way.
CPU time is that of every process in between, memory the largest resident set seen while the
backlog was landed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from sluice.bench import backlog
from sluice.bench.processes import SparkProcesses
from sluice.devstack import LOOPBACK, Stack, replay
from sluice.devstack.control import ClusterControl
from sluice.devstack.launch import PUMP_NAMES
from sluice.devstack.recording import Recording
from sluice.devstack.state import StackError
from sluice.etl.landing import LandedWindow, run_land
from sluice.etl.settings import Settings, load_settings
from sluice.tidb import PDClient

SIZES = (200_000, 1_000_000)
_PARTS = ("etcd", "cluster", *PUMP_NAMES, "spark")
_REST_S = 0.02
_WARM_UP_TRANSACTIONS = 100
PATIENCE_S = 600.0


@dataclass(slots=True)
class LandResult:
    """One backlog."""

    changes: int = 0
    seconds: float = 0.0
    rows_per_s: float = 0.0
    windows: int = 0
    bytes: int = 0
    """Size of the parts."""
    stages_ms: dict[str, float] = field(default_factory=dict)
    """Summed over the windows; jobs overlap."""
    cpu_us: dict[str, float] = field(default_factory=dict)
    """CPU time a row change, by process."""
    taking_us: float = 0.0
    """The pumps' CPU time a row change before: to take the binlogs, sync, sort and index them."""
    written: dict[str, float] = field(default_factory=dict)
    """Bytes that lie on the disk for a byte of binlogs."""
    rss_mib: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Landed:
    """A stack whose relay log holds a recording.

    `write` has so many row changes more in the pumps, of `values` again and again.
    """

    settings: Settings
    recording: Recording
    values: list[tuple[bytes, int]]
    write: Callable[[Sequence[tuple[bytes, int]], int], backlog.Written]


def measure(
    stack: Stack, directory: Path, sizes: Sequence[int], report: Callable[[str], None]
) -> list[LandResult]:
    """Run the benchmark in a stack of its own; a result for each of `sizes` (row changes).

    Raises StackError, RecordingError.
    """
    with landed_recording(stack, directory, report) as there:
        processes = _Processes(stack)
        results = []
        for size in sizes:
            places = _places(stack)
            took, held = processes.cpu()["pumps"], _bytes(places)
            written = there.write(there.values, size)
            report(
                f"{size:,} row changes in {written.transactions:,} transactions written; landing"
            )
            _settle(processes)
            took = processes.cpu()["pumps"] - took
            result = _land(there.settings, written.last, processes)
            result.taking_us = round(took * 1e6 / size, 2)
            grown = _bytes(places)
            result.written = {
                name: round((grown[name] - held[name]) / written.bytes, 3) for name in places
            }
            results.append(result)
        return results


def _places(stack: Stack) -> dict[str, list[Path]]:
    """Return the folders of each kind of data."""
    data = [stack.home / name / "data" for name in PUMP_NAMES]
    return {
        "value log": [each / "value" for each in data],
        "index": [each / "kv" for each in data],
        "relay log": [stack.home / "relay"],
    }


def _bytes(places: dict[str, list[Path]]) -> dict[str, int]:
    """Return the bytes of each kind of data, as they lie there now."""
    return {
        name: sum(
            path.stat().st_size for root in roots for path in root.rglob("*") if path.is_file()
        )
        for name, roots in places.items()
    }


def _settle(processes: _Processes) -> None:
    """Wait until the pumps have indexed what was written: until they rest."""
    used = -1.0
    while processes.cpu()["pumps"] - used > _REST_S:
        used = processes.cpu()["pumps"]
        time.sleep(0.5)


@contextlib.contextmanager
def landed_recording(
    stack: Stack, directory: Path, report: Callable[[str], None]
) -> Iterator[Landed]:
    """Yield a stack without Airflow and downstream, with the recording in `directory` landed.

    The recording has been sent and landed in a stack of its own; it is down afterwards. Raises
    StackError, RecordingError.
    """
    stack.down()
    stack.wipe(*_PARTS, "relay", "logs")
    recording, values = backlog.load(directory)
    try:
        stack.claim()
        stack.up(_PARTS, recording=directory, report=report)
        site = stack.site()
        control = ClusterControl(site.ports["cluster-control"])
        replay.send(stack, None, "max", "range")
        deadline = time.monotonic() + PATIENCE_S
        while not replay.is_sent(control):
            if time.monotonic() > deadline:
                raise StackError(
                    f"the recording was not sent within {PATIENCE_S:.0f} s. {replay.hint(stack)}"
                )
            time.sleep(0.1)
        settings = load_settings(stack.home / "sluice.toml")
        report("sent; landing it, to warm up")
        small = replace(
            settings, window=replace(settings.window, max_transactions=_WARM_UP_TRANSACTIONS)
        )
        run_land(
            small, start_ts=0, until_ts=replay.target(recording, None)[1], run_seconds=PATIENCE_S
        )
        url = f"http://{LOOPBACK}:{site.ports['cluster']}"
        with PDClient(url) as pd:
            timestamps = backlog.Timestamps(url, pd.cluster_id)
            pumps = [f"{LOOPBACK}:{site.ports[name]}" for name in PUMP_NAMES]
            yield Landed(
                settings,
                recording,
                values,
                lambda wanted, size: backlog.write(pumps, timestamps, pd.cluster_id, wanted, size),
            )
            timestamps.close()
    finally:
        stack.down()


def _land(settings: Settings, until_ts: int, processes: _Processes) -> LandResult:
    result = LandResult()
    marks: list[tuple[float, dict[str, float], LandedWindow]] = []

    def landed(window: LandedWindow) -> None:
        if window.changes:
            marks.append((time.perf_counter(), processes.cpu(), window))

    with processes.peak() as peak:
        run_land(settings, until_ts=until_ts, run_seconds=PATIENCE_S, on_window=landed)
    if len(marks) < 3:
        raise StackError(f"{len(marks)} windows are too few to measure: land a larger backlog")
    (began, before, _), (ended, after, _) = marks[0], marks[-2]
    for _, _, window in marks[1:-1]:
        result.windows += 1
        result.changes += window.changes
        result.bytes += window.bytes
        for stage, ms in window.stages_ms.items():
            result.stages_ms[stage] = round(result.stages_ms.get(stage, 0.0) + ms, 1)
    result.seconds = round(ended - began, 3)
    result.rows_per_s = round(result.changes / (ended - began))
    result.cpu_us = {
        name: round((after[name] - before[name]) * 1e6 / result.changes, 2) for name in after
    }
    result.rss_mib = {name: round(size / 2**20) for name, size in peak.items()}
    return result


class _Processes(SparkProcesses):
    """The processes, with the pumps that windows are read from."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        parts = stack.state().parts
        self._pumps = [psutil.Process(parts[name].process.pid) for name in PUMP_NAMES]

    def cpu(self) -> dict[str, float]:
        return super().cpu() | {"pumps": sum(sum(pump.cpu_times()[:2]) for pump in self._pumps)}

    def rss(self) -> dict[str, int]:
        return super().rss() | {"pump": max(pump.memory_info().rss for pump in self._pumps)}

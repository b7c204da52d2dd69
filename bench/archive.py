"""Measure how fast a backlog is archived, what it becomes in bytes, and in how much memory.

etcd, the stand-in cluster, two pumps and Spark run; nothing else. The recording is landed and
archived first, which shows how large it becomes, and warms Spark up. Then its traffic is landed
again and again, each time with other digits in its texts, until the backlog is as large as asked
for, and archived by `sluice.etl.history.archive` in this process. CPU time is that of every
process meanwhile, memory the largest resident set seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice.bench import backlog
from sluice.bench.land import PATIENCE_S, landed_recording
from sluice.bench.processes import SparkProcesses
from sluice.devstack import Stack
from sluice.etl.history.archive import ArchiveSummary, archive_through
from sluice.etl.landing import run_land

CHANGES = 2_000_000


@dataclass(slots=True)
class Sizes:
    """Bytes of what one range is: as binlogs from TiDB, in the relay log, in the archive."""

    binlogs: int = 0
    relay: int = 0
    log: int = 0
    lake: int = 0


@dataclass(slots=True)
class ArchiveResult:
    """One backlog; `recording` is what the recording alone became."""

    workers: int
    changes: int = 0
    seconds: float = 0.0
    segments: int = 0
    sizes: Sizes = field(default_factory=Sizes)
    recording: Sizes = field(default_factory=Sizes)
    stages_ms: dict[str, float] = field(default_factory=dict)
    """Summed over the segments; jobs overlap."""
    cpu_us: dict[str, float] = field(default_factory=dict)
    """CPU time a row change, by process."""
    rss_mib: dict[str, int] = field(default_factory=dict)


def measure(
    stack: Stack, directory: Path, changes: int, workers: int, report: Callable[[str], None]
) -> ArchiveResult:
    """Run the benchmark in a stack of its own. Raises StackError, RecordingError."""
    result = ArchiveResult(workers)
    with landed_recording(stack, directory, report) as there:
        settings = replace(
            there.settings, archive=replace(there.settings.archive, worker_count=workers)
        )
        processes = SparkProcesses(stack)
        result.recording = _sizes(archive_through(settings))
        result.recording.binlogs = sum(len(record.payload) for record in there.recording.records())
        per_turn = sum(inside for _, inside in there.values)
        values = backlog.again(there.values, -(-changes // per_turn)) or there.values
        written = there.write(values, changes)
        report(f"{changes:,} row changes in {written.transactions:,} transactions written; landing")
        run_land(settings, until_ts=written.last, run_seconds=PATIENCE_S)
        report("landed; archiving")
        before, began = processes.cpu(), time.perf_counter()
        with processes.peak() as peak:
            done = archive_through(settings)
        result.seconds = round(time.perf_counter() - began, 3)
        result.changes, result.segments, result.sizes = done.changes, done.segments, _sizes(done)
        result.cpu_us = _cpu(before, processes.cpu(), done.changes)
        result.stages_ms = done.stages_ms
        result.rss_mib = {name: round(size / 2**20) for name, size in peak.items()}
    return result


def _sizes(done: ArchiveSummary) -> Sizes:
    return Sizes(0, done.read_bytes, done.log_bytes, done.lake_bytes)


def _cpu(before: dict[str, float], after: dict[str, float], changes: int) -> dict[str, float]:
    return {name: round((after[name] - before[name]) * 1e6 / changes, 2) for name in after}

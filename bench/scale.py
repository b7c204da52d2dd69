"""Measure what grows with pumps and Spark workers: landing a backlog, and archiving it.

It is landed from 1, 2 and 4 pumps with 1, 2 and 4 workers of a standalone cluster.

A machine with two cores is no faster with more than two workers. So what counts is CPU time, by
process, and which of it belongs to processes that there is one of: from both follows how far it
grows (docs/explanation/scale.md). Each figure is printed for every run; repeat it on a busy
machine.

    python -m sluice.bench.scale --pumps 1 --pumps 2 --pumps 4
        --workers 1 --workers 2 --workers 4 --changes 400000
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import psutil

from sluice.bench import backlog
from sluice.bench.apply import RECORDING
from sluice.bench.land import PATIENCE_S, Landed, landed_recording
from sluice.devstack import LOOPBACK, Stack
from sluice.devstack.launch.pump import NAMES, pump
from sluice.devstack.launch.service import Service, base_environment
from sluice.devstack.launch.standalone import StandaloneCluster, free_port
from sluice.devstack.repository import recording_folder
from sluice.etl.history.archive import archive_through
from sluice.etl.landing import run_land
from sluice.etl.settings import Archive, Settings, Spark
from sluice.tidb import PDClient

_BEFORE_CHANGES = 100_000
"""Changes that a new cluster lands before the clock runs: a JVM that has run few jobs is slower."""


@click.command()
@click.option("--pumps", multiple=True, type=int, default=(1, 2, 4), show_default=True)
@click.option("--workers", multiple=True, type=int, default=(1, 2, 4), show_default=True)
@click.option("--changes", default=400_000, show_default=True, help="Row changes a measurement.")
def main(pumps: tuple[int, ...], workers: tuple[int, ...], changes: int) -> None:
    """Print a line a measurement: seconds, and CPU seconds a million row changes by process."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-scale-") as home,
        contextlib.ExitStack() as stack,
    ):
        one = Stack(Path(home, "stack"))
        there = stack.enter_context(landed_recording(one, recording_folder(RECORDING), _say))
        pipeline = stack.enter_context(_Pipeline.of(one, there, max(pumps)))
        for count in workers:
            with _cluster(Path(home, f"spark-{count}"), count) as cluster:
                _measure(pipeline, cluster, pumps, changes)


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """A pipeline to land from.

    `write(pumps, changes)` sends row changes to the first pumps; returns the last commit_ts.
    """

    settings: Settings
    pumps: tuple[int, ...]
    """Pids of the pumps."""
    write: Callable[[int, int], int]

    @classmethod
    @contextlib.contextmanager
    def of(cls, stack: Stack, there: Landed, pumps: int) -> Iterator[_Pipeline]:
        """Yield the pipeline, with pumps beside the stack's two where more are wanted."""
        site, parts = stack.site(), stack.state().parts
        pids = [parts[name].process.pid for name in NAMES]
        addresses = [f"{LOOPBACK}:{site.ports[name]}" for name in NAMES]
        url = f"http://{LOOPBACK}:{site.ports['cluster']}"
        with contextlib.ExitStack() as more, PDClient(url) as pd:
            for number in range(len(NAMES) + 1, pumps + 1):
                name = f"pump-{number}"
                part = pump(replace(site, ports={**site.ports, name: free_port()}), name)
                pids.append(more.enter_context(_started(part)).pid)
                addresses.append(part.summary)
            timestamps = more.enter_context(
                contextlib.closing(backlog.Timestamps(url, pd.cluster_id))
            )
            cluster = pd.cluster_id

            def write(count: int, changes: int) -> int:
                return backlog.write(addresses[:count], timestamps, cluster, there.values, changes)[
                    1
                ]

            yield cls(there.settings, tuple(pids), write)


@contextlib.contextmanager
def _started(part: Service) -> Iterator[subprocess.Popen[bytes]]:
    part.prepare()
    process = subprocess.Popen(
        part.argv, env=base_environment(), cwd=part.cwd, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                part.probe()
                break
            except Exception:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        yield process
    finally:
        process.terminate()
        process.wait()


def _measure(
    pipeline: _Pipeline, cluster: StandaloneCluster, pumps: tuple[int, ...], changes: int
) -> None:
    workers = len([name for name in cluster.pids if name.startswith("worker")])
    settings = replace(pipeline.settings, spark=Spark(cluster.remote, shared_files=True))
    settings = replace(settings, archive=Archive(worker_count=workers))
    cpu = _Cpu(pipeline.pumps, cluster)
    _land(settings, pipeline.write(len(pipeline.pumps), _BEFORE_CHANGES))
    archive_through(settings)
    for count in pumps:
        last = pipeline.write(count, changes)
        _timed(f"land from {count} pumps, {workers} workers", cpu, partial(_land, settings, last))
    _timed(f"archive, {workers} workers", cpu, partial(_archive, settings))


def _land(settings: Settings, until_ts: int) -> int:
    """Row changes."""
    found: list[int] = []
    run_land(
        settings,
        until_ts=until_ts,
        run_seconds=PATIENCE_S,
        on_window=lambda window: found.append(window.changes),
    )
    return sum(found)


def _archive(settings: Settings) -> int:
    """Row changes."""
    found: list[int] = []
    archive_through(settings, on_segment=lambda segment: found.append(segment.changes))
    return sum(found)


def _timed(what: str, cpu: _Cpu, run: Callable[[], int]) -> None:
    before, began = cpu(), time.perf_counter()
    changes = run()
    seconds, after = time.perf_counter() - began, cpu()
    spent = ", ".join(
        f"{name} {(after[name] - before[name]) * 1e6 / max(changes, 1):.2f}" for name in after
    )
    _say(f"{what}: {changes:>9,} changes in {seconds:6.1f} s; CPU s a million: {spent}")


class _Cpu:
    """CPU seconds so far, by kind of process."""

    def __init__(self, pumps: Sequence[int], cluster: StandaloneCluster) -> None:
        self._pumps = [psutil.Process(pid) for pid in pumps]
        self._cluster = {name: psutil.Process(pid) for name, pid in cluster.pids.items()}

    def __call__(self) -> dict[str, float]:
        below = [
            child
            for name, each in self._cluster.items()
            if "worker" in name
            for child in _tree(each)
        ]
        python = [each for each in below if "python" in each.name()]
        return {
            "client": _seconds(psutil.Process()),
            "driver": _seconds(self._cluster["connect"]),
            "master and workers": sum(
                _seconds(each) for name, each in self._cluster.items() if name != "connect"
            ),
            "executors": sum(_seconds(each) for each in below if each not in python),
            "python": sum(map(_seconds, python)),
            "pumps": sum(map(_seconds, self._pumps)),
        }


def _tree(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children(recursive=True) if child.is_running()]


def _seconds(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


@contextlib.contextmanager
def _cluster(home: Path, workers: int) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(home, {})
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(home, ignore_errors=True)


def _say(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    main()

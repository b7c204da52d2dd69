"""Measure how as-of of one large table grows with workers, its memory, and what a kill costs.

A snapshot of one table of sysbench's shape and a log of updates of it are made without a database.
Then, for each number of workers, a standalone cluster of workers of one core computes the table as
of the log's end, and its workers write it as Parquet. Each turn begins with a small table, which
warms Spark up. In the last turn a worker is killed with -9 in the middle, with its executor, its
Python and its shuffled rows, and started again.

Memory is sampled once a second; it is constant if the thirds of a turn agree. CPU time is that of
all processes of the cluster; on a machine with fewer cores than workers, or with other work, that
is what to compare.
"""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from sluice.bench.apply_shapes import landed
from sluice.bench.copy import TABLE
from sluice.bench.shape_parts import History, digits
from sluice.devstack import StackError
from sluice.devstack.launch.standalone import StandaloneCluster
from sluice.etl.copy.snapshot_files import rows_schema, write_files
from sluice.etl.history.archive import archive_through
from sluice.etl.history.as_of import tables_as_of
from sluice.etl.history.snapshots.plan import schemas_of, table_of
from sluice.etl.settings import Downstream, Relay, Settings, Spark, Upstream
from sluice.relay import UPDATE, RelayLog
from sluice.relay.archive import (
    Archive,
    ArchiveSnapshot,
    PendingSnapshot,
    SnapshotTable,
    snapshot_id,
)
from sluice.tidb.rows import encode_update
from sluice.tidb.schema import Schema, Table

__all__ = ["AsOfResult", "measure"]

_ROW_BYTES = 210
"""A row in memory: two numbers and 179 digits."""
_BATCH_ROWS = 50_000
_CHANGES = 100_000
_WARM_UP_ROWS = 20_000
_SMALL = replace(TABLE, id=12, name="warm")
_KILL_AT = 0.5
"""When the worker is killed: the share of the time that the turn before took."""


@dataclass(slots=True)
class AsOfResult:
    """One turn.

    `memory_mib`: the largest of each kind of process in each third of it. `cpu_s`: of all of them;
    `others_cores`: cores that other processes had meanwhile, on average.
    """

    workers: int
    killed: bool
    rows: int
    row_bytes: int
    seconds: float = 0.0
    cpu_s: float = 0.0
    others_cores: float = 0.0
    memory_mib: dict[str, list[int]] = field(default_factory=dict)


def measure(
    home: Path, size: int, workers: list[int], report: Callable[[str], None]
) -> list[AsOfResult]:
    """Return a turn for each number of workers of a table of `size` bytes, and the one with a kill.

    Everything lies in `home`, an empty folder, and is removed. Raises StackError.
    """
    rows = max(size // _ROW_BYTES, 1)
    try:
        report(f"making a snapshot of {rows:,} rows and {_CHANGES:,} changes")
        relay = (home / "relay").as_uri()
        _make(relay, rows)
        found: list[AsOfResult] = []
        for count, killed in [*((each, False) for each in workers), (workers[-1], True)]:
            turn = AsOfResult(count, killed, rows, rows * _ROW_BYTES)
            after_s = found[-1].seconds * _KILL_AT if killed else 0.0
            report(f"{count} workers{', one is killed' if killed else ''}")
            with _cluster(home / "cluster", count) as cluster:
                _turn(turn, relay, cluster, after_s)
            report(f"  {turn.seconds:.1f} s")
            found.append(turn)
        return found
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _make(relay_url: str, rows: int) -> None:
    rng = random.Random(1)
    transactions = []
    for table, among, count in ((TABLE, rows, _CHANGES), (_SMALL, _WARM_UP_ROWS, 100)):
        for key in rng.sample(range(among), min(count, among)):
            old = {"id": key, "k": 1, "c": "-", "pad": "-"}
            new = old | {"c": digits(rng, 10)}
            transactions.append([(table, UPDATE, encode_update(table, old, new))])
    relay, _ = landed(History(transactions), relay_url, 5_000)
    first = relay.first()
    assert first is not None
    archive = Archive.open(_settings(relay_url, "").archive_url)
    name = snapshot_id(first.lo, "bench")
    archive.snapshots.begin(name, PendingSnapshot("bench"))
    tables = []
    for table, count in ((TABLE, rows), (_SMALL, _WARM_UP_ROWS)):
        folder = f"snapshots/{name}/{table.id}"
        files = write_files(archive.storage, folder, table, _batches(table, count))
        described = table_of(table)
        tables.append(
            SnapshotTable(described.schema, described.name, described.table, tuple(files))
        )
    archive.snapshots.publish(
        ArchiveSnapshot(
            name, first.lo, 1, 7, time.time_ns() // 10**6, "bench",
            schemas_of([Schema(3, "sbtest", "utf8mb4", "utf8mb4_bin")]), tuple(tables),
        )
    )  # fmt: skip


def _batches(table: Table, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield rows whose texts are random digits: a file's compress as little as a real table's."""
    rng = np.random.default_rng(1)
    schema = rows_schema(table)
    texts = {
        name: rng.integers(48, 58, _BATCH_ROWS * width, np.uint8).tobytes()
        for name, width in (("c", 119), ("pad", 60))
    }
    for first in range(0, rows, _BATCH_ROWS):
        count = min(_BATCH_ROWS, rows - first)
        arrays = {
            "id": pa.array(np.arange(first, first + count)),
            "k": pa.array(rng.integers(0, 1 << 30, count)),
        }
        for name, width in (("c", 119), ("pad", 60)):
            # each batch begins elsewhere in the same digits
            at = int(rng.integers(0, _BATCH_ROWS)) * width
            data = texts[name][at:] + texts[name][:at]
            offsets = pa.array(np.arange(count + 1) * width).buffers()[1]
            arrays[name] = pa.LargeStringArray.from_buffers(count, offsets, pa.py_buffer(data))
        yield pa.RecordBatch.from_arrays(
            [arrays[each.name].cast(each.type) for each in schema], schema=schema
        )


def _settings(relay_url: str, remote: str) -> Settings:
    spark = Spark(remote, shared_files=True)
    return Settings(Upstream(""), Relay(relay_url), Downstream(), spark=spark)


def _turn(
    turn: AsOfResult, relay_url: str, cluster: StandaloneCluster, kill_after_s: float
) -> None:
    settings = _settings(relay_url, cluster.remote)
    archive_through(settings)
    last = RelayLog.open(relay_url).last()
    assert last is not None
    for table in (_SMALL, TABLE):
        out = cluster.home / "out"
        past = tables_as_of(settings, last.hi, [table.full_name])
        watch = _Watch(cluster)
        with watch:
            killer = threading.Timer(kill_after_s, _kill, [cluster])
            if kill_after_s and table is TABLE:
                killer.start()
            began = time.monotonic()
            try:
                (rows,) = past.write_parquet(out.as_uri()).values()
            finally:
                killer.cancel()
            turn.seconds = round(time.monotonic() - began, 2)
        shutil.rmtree(out)
    turn.memory_mib, turn.cpu_s = watch.thirds(), round(watch.cpu_s(), 1)
    turn.others_cores = round(watch.others_cores, 2)
    if rows != turn.rows:
        raise StackError(f"as-of has {rows:,} rows, and the snapshot {turn.rows:,}")


def _kill(cluster: StandaloneCluster) -> None:
    cluster.kill("worker-0")
    cluster.start_worker(0)


class _Watch:
    """A context that samples resident sets, of the largest process of each kind, and CPU time."""

    def __init__(self, cluster: StandaloneCluster) -> None:
        self._cluster = cluster
        self._samples: list[dict[str, int]] = []
        self._used_s: dict[int, list[float]] = {}
        """CPU time by pid: as it was at first, and last."""
        self.others_cores = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)

    def __enter__(self) -> _Watch:
        self._sample()
        self._began = time.monotonic(), _busy_s()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self._sample()
        began, busy_s = self._began
        others_s = _busy_s() - busy_s - self.cpu_s()
        self.others_cores = max(0.0, others_s) / (time.monotonic() - began)

    def cpu_s(self) -> float:
        """Return the CPU time of client and cluster, but the last second of ended processes."""
        return sum(last - first for first, last in self._used_s.values())

    def thirds(self) -> dict[str, list[int]]:
        """Return the largest sample of each third, in MiB."""
        cuts = [len(self._samples) * third // 3 for third in range(4)]
        return {
            kind: [
                max((each[kind] for each in self._samples[begin:end]), default=0) >> 20
                for begin, end in itertools.pairwise(cuts)
            ]
            for kind in ("client", "driver", "executor", "Python")
        }

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            self._sample()

    def _sample(self) -> None:
        found = dict.fromkeys(("client", "driver", "executor", "Python"), 0)
        for kind, process in self._processes():
            try:
                used_s = float(sum(process.cpu_times()[:2]))
                if kind in found:
                    found[kind] = max(found[kind], process.memory_info().rss)
            except psutil.NoSuchProcess:  # ended while it was looked at
                continue
            # what began meanwhile began with nothing
            seen = self._used_s.setdefault(process.pid, [0.0 if self._samples else used_s, 0.0])
            seen[1] = used_s
        self._samples.append(found)

    def _processes(self) -> Iterator[tuple[str, psutil.Process]]:
        yield "client", psutil.Process()
        for name, pid in self._cluster.pids.items():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                yield "driver" if name == "connect" else name, process
                if name.startswith("worker"):
                    for child in process.children(recursive=True):
                        yield "executor" if child.name() == "java" else "Python", child


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


@contextmanager
def _cluster(home: Path, workers: int) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(home, {})
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(home, ignore_errors=True)

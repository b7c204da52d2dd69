"""Measure how fast a Dumpling folder becomes a replica, and what limits it.

MariaDB at its default durability and Spark run, nothing else. A dump of one table of sysbench's
shape is written (190 bytes a row, random text, one secondary index), and copied by
`sluice.etl.copy` in this process with the default settings, into an empty database; a small one
before it, which warms Spark up. Rates are of the whole, from the first table to the checkpoint,
and of the rows alone. CPU time is that of every process meanwhile: on a busy machine that is what
to compare. What limits follows from how long sessions waited for rows that Spark was reading, and
how long they wrote.

`measure_making` leaves the database out: Spark makes the same loads as files, which are removed
unread, with one worker at a time and with two.
"""

from __future__ import annotations

import random
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.bench.processes import DatabaseProcesses, SparkProcesses
from sluice.devstack import Stack
from sluice.devstack.launch import drop_everything
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.bootstrap_run import CopyProgressCounts
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.source import SourceChunk
from sluice.etl.copy.spark_loads import SparkLoadMaker
from sluice.etl.settings import Relay, Settings, load_settings
from sluice.etl.spark.session_target import SessionTarget
from sluice.tidb import tso
from sluice.tidb.column_types import CHAR, FLAG_NOT_NULL, FLAG_PRIMARY_KEY, INT
from sluice.tidb.schema import Column, Index, Schema, Table

ROWS = 1_000_000
_WARM_UP_ROWS = 100_000
_PARTS = ("mariadb", "spark")
POSITION = tso.compose(1_790_000_000_000)
_STATEMENT_ROWS = 5_000
_TEXT: dict[str, Any] = {"charset": "utf8mb4", "collate": "utf8mb4_bin", "flag": FLAG_NOT_NULL}
TABLE = Table(
    11,
    3,
    "sbtest",
    "sbtest1",
    (
        Column(1, "id", 0, INT, flag=FLAG_NOT_NULL | FLAG_PRIMARY_KEY),
        Column(2, "k", 1, INT, flag=FLAG_NOT_NULL),
        Column(3, "c", 2, CHAR, flen=120, **_TEXT),
        Column(4, "pad", 3, CHAR, flen=60, **_TEXT),
    ),
    (Index(1, "k_1", (("k", 1, -1),)),),
    "utf8mb4",
    "utf8mb4_bin",
    pk_is_handle=True,
)


@dataclass(slots=True)
class CopyResult:
    """One copy."""

    form: str
    indexes: str
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    rows_seconds: float = 0.0
    """Seconds until the last chunk was downstream."""
    waited_s: float = 0.0
    """Summed over the sessions, as is `written_s`."""
    written_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    rss_mib: dict[str, int] = field(default_factory=dict)

    @property
    def limit(self) -> str:
        """Return what the sessions waited for most."""
        return "the downstream (writing)" if self.written_s > self.waited_s else "reading (Spark)"


def measure(
    stack: Stack, rows: int, ways: list[tuple[str, str]], report: Callable[[str], None]
) -> list[CopyResult]:  # fmt: skip
    """Return a result for each of `ways`.

    A way is "sql" or "csv", with indexes "before" or "after" the rows. Raises StackError.
    """
    stack.down()
    stack.wipe("mariadb", "spark", "relay", "logs")
    folder = stack.home / "dumps"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        stack.claim()
        stack.up(_PARTS, report=report)
        settings = load_settings(stack.home / "sluice.toml")
        results = []
        for number, (form, indexes) in enumerate([(ways[0][0], "before"), *ways]):
            dump = folder / f"{form}-{rows if number else _WARM_UP_ROWS}"
            if not dump.exists():
                write_dump(dump, form, rows if number else _WARM_UP_ROWS)
            report(f"copying {dump.name}, indexes {indexes} the rows")
            drop_everything(stack.site())
            results.append(_copy(stack, settings, dump, (form, indexes, number)))
        return results[1:]
    finally:
        stack.down()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class MakingResult:
    """Making loads with so many workers at a time."""

    workers: int
    rows: int
    bytes: int
    seconds: float
    cpu_s: dict[str, float]
    rss_mib: dict[str, int]

    @property
    def cores(self) -> float:
        """Return how many cores were busy with it, on the average."""
        return sum(self.cpu_s.values()) / self.seconds


def measure_making(
    stack: Stack, rows: int, form: str, workers: Sequence[int], report: Callable[[str], None]
) -> list[MakingResult]:
    """Return a result for each number of workers.

    Raises StackError.
    """
    stack.down()
    stack.wipe("spark", "relay", "logs")
    folder = stack.home / "dumps"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        stack.claim()
        stack.up(("spark",), report=report)
        server = load_settings(stack.home / "sluice.toml").spark
        write_dump(folder / "dump", form, rows)
        source = DumplingFolder.open(str(folder / "dump"))
        make = SparkLoadMaker(
            SessionTarget(server, "copy", (folder / "relay").as_uri()), source.spec()
        )
        results = []
        for number in (max(workers), *workers):  # the first one warms up
            report(f"making loads, workers: {number}")
            results.append(_make(stack, source, make, number))
        make.close()
        return results[1:]
    finally:
        stack.down()
        shutil.rmtree(folder, ignore_errors=True)


def _make(stack: Stack, source: DumplingFolder, make: SparkLoadMaker, workers: int) -> MakingResult:
    chunks = source.chunks(TABLE)
    processes = SparkProcesses(stack)
    before, began = processes.cpu(), time.monotonic()
    watch = processes.peak()

    def one(chunk: SourceChunk) -> int:
        loads = make.files(chunk, TABLE, secrets.token_hex(4))
        make.discard(loads)
        return sum(load.rows for load in loads)

    with watch as peak, ThreadPoolExecutor(workers) as pool:
        made = sum(pool.map(one, chunks))
    seconds, after = time.monotonic() - began, processes.cpu()
    after["client"] -= watch.own_cpu_s
    return MakingResult(
        workers, made, sum(chunk.bytes for chunk in chunks),
        round(seconds, 3), {name: round(after[name] - before[name], 2) for name in after},
        {name: round(size / 2**20) for name, size in peak.items()},
    )  # fmt: skip


def write_dump(folder: Path, form: str, rows: int) -> None:
    """Write a Dumpling folder with `rows` rows of TABLE, in two files."""
    folder.mkdir(parents=True)
    (folder / "metadata").write_text(
        "Started dump at: 2026-11-22 01:03:38\nSHOW MASTER STATUS:\n\tLog: tidb-binlog\n\tPos:"
        f" {POSITION}\n\tGTID:\n\nFinished dump at: 2026-11-22 01:03:38\n"
    )
    randomly = random.Random(1)
    pattern = "({},{},'{}','{}')" if form == "sql" else '{},{},"{}","{}"\r\n'
    texts = ["-".join(f"{randomly.randrange(10**11):011}" for _ in range(10)) for _ in range(1000)]
    for part in range(2):
        with (folder / f"sbtest.sbtest1.{part:09}.{form}").open("w", newline="") as file:
            file.write(
                "/*!40101 SET NAMES binary*/;\n" if form == "sql" else '"id","k","c","pad"\r\n'
            )
            for first in range(part * rows // 2, (part + 1) * rows // 2, _STATEMENT_ROWS):
                lines = [
                    pattern.format(
                        n + 1,
                        randomly.randrange(rows),
                        randomly.choice(texts),
                        randomly.choice(texts)[:59],
                    )
                    for n in range(first, min(first + _STATEMENT_ROWS, (part + 1) * rows // 2))
                ]
                if form == "sql":
                    file.write("INSERT INTO `sbtest1` VALUES\n" + ",\n".join(lines) + ";\n")
                else:
                    file.write("".join(lines))


def _copy(stack: Stack, settings: Settings, dump: Path, way: tuple[str, str, int]) -> CopyResult:
    form, indexes, number = way
    relay = dump.parent / f"relay-{number}"
    settings = Settings(
        settings.upstream, Relay(relay.as_uri()), settings.downstream, spark=settings.spark
    )
    source = DumplingFolder.open(str(dump))
    made = SourceSchema(POSITION, 1, (Schema(3, "sbtest", "utf8mb4", "utf8mb4_bin"),), (TABLE,))
    bootstrap = BootstrapPlanner(settings, source, made, 1)
    bootstrap.indexes_after_bytes = 0 if indexes == "after" else 1 << 60
    result = CopyResult(form, indexes)
    processes = DatabaseProcesses(stack)
    make = SparkLoadMaker(SessionTarget(settings.spark, "copy", settings.relay.url), source.spec())

    def progressed(progress: CopyProgressCounts) -> None:
        if progress.chunks == progress.chunks_in_all and not result.rows_seconds:
            result.rows_seconds = round(time.monotonic() - progress.began_s, 3)
            result.waited_s, result.written_s = (
                round(progress.waited_s, 3),
                round(progress.written_s, 3),
            )

    before = processes.cpu()
    watch = processes.peak()
    with watch as peak:
        summary = bootstrap.run(make, on_progress=progressed)
    after = processes.cpu()
    after["client"] -= watch.own_cpu_s
    make.close()
    result.rows, result.bytes, result.seconds = summary.rows, summary.bytes, summary.seconds
    result.cpu_s = {name: round(after[name] - before[name], 2) for name in after}
    result.rss_mib = {name: round(size / 2**20) for name, size in peak.items()}
    return result

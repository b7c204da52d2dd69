"""The Spark job that lands a window: read from the pumps, explode, write the parts; what comes back is statistics.

One partition a pump and sub-range, one part a partition. The parts are durable when the job has ended, and mean nothing
until the client commits the window's record.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from etl._spark_job import WorkerError, collect
from etl._spark_worker import settle
from etl.explode import BinlogDecodeError, DdlRecord, Exploder
from etl.planner import Plan
from etl.source import SOURCE_NAME, PumpRange, PumpWindowSource, source_options
from relay import Part, RelayLog

_STATS_SCHEMA = pa.schema([pa.field("stats", pa.string())])


@dataclass(frozen=True, slots=True)
class TableSpan:
    """First and last commit_ts with rows of a table."""

    rows: int
    first_commit_ts: int
    last_commit_ts: int


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a landing job did, all partitions together."""

    parts: tuple[Part, ...]
    transactions: int
    ddls: tuple[DdlRecord, ...]
    """Ascending commit_ts, each once."""
    tables: Mapping[int, TableSpan]
    skipped: Mapping[str, int]
    worker_ms: Mapping[str, float]
    """Of the slowest worker."""


@dataclass(frozen=True, slots=True)
class LandPartition:
    """Runs in Spark's Python workers, once a partition: writes its part, yields one row of statistics."""

    relay_url: str
    lo: int
    hi: int
    token: str
    hosts: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        started = time.perf_counter()
        reading = exploding = 0.0
        exploder = Exploder(self.hosts[context.partitionId()])

        def changes() -> Iterator[pa.RecordBatch]:
            nonlocal reading, exploding
            ready: list[pa.RecordBatch] = []
            while True:
                mark = time.perf_counter()
                batch = next(batches, None)
                arrived = time.perf_counter()
                reading += arrived - mark
                if batch is None:
                    exploder.finish(ready.append)
                else:
                    exploder.explode(batch, ready.append)
                exploding += time.perf_counter() - arrived
                yield from ready
                ready.clear()
                if batch is None:
                    return

        relay = RelayLog.open(self.relay_url)
        # The attempt's number: a repeated task never meets the file of the one before.
        part = relay.write_part(self.lo, self.hi, self.token, context.taskAttemptId(), changes())
        totals = exploder.totals
        whole = time.perf_counter() - started
        stats = {
            "part": part.to_dict() if part else None,
            "transactions": totals.transactions,
            "ddls": [ddl.to_dict() for ddl in totals.ddls],
            "tables": {str(i): [t.rows, t.first_commit_ts, t.last_commit_ts] for i, t in totals.tables.items()},
            "skipped": {"internal_changes": totals.internal_changes, "fake_ddls": totals.fake_ddls},
            "worker_ms": {
                "read": reading * 1000,
                "explode": exploding * 1000,
                "write": (whole - reading - exploding) * 1000,
            },
        }
        yield pa.record_batch([pa.array([json.dumps(stats)])], schema=_STATS_SCHEMA)
        settle()


class LandingJob:
    """Runs landing jobs in a Spark Connect session."""

    def __init__(self, spark: Any, relay_url: str, cluster_id: int) -> None:
        self._spark = spark
        self._relay_url = relay_url
        self._cluster_id = cluster_id
        spark.dataSource.register(PumpWindowSource)

    def warm_up(self, hosts: Sequence[str], ts: int, timeout_s: float) -> None:
        """Land nothing from these pumps: the first job starts Python workers and loads classes, for seconds. Trouble is
        left for the first real job to meet."""
        ranges = tuple(PumpRange(host, ts, ts) for host in hosts)
        with contextlib.suppress(Exception):
            self.run(Plan(ts, ts, ts, ranges, 0, 0, False), "warm", timeout_s)

    def run(self, plan: Plan, token: str, timeout_s: float) -> JobResult:
        """Land the plan's ranges; the parts are durable on return. `token` must not have been used before.

        Raises BinlogDecodeError, WorkerError, and Spark's errors; a job that takes longer than `timeout_s` is interrupted.
        """
        if not plan.ranges:
            return JobResult((), 0, (), {}, {}, {})
        partition = LandPartition(
            self._relay_url, plan.lo, plan.hi, token, tuple(range_.host for range_ in plan.ranges)
        )
        frame = (
            self._spark.read.format(SOURCE_NAME)
            .options(**source_options(self._cluster_id, plan.ranges))
            .load()
            .mapInArrow(partition, "stats string")
        )
        try:
            rows = collect(self._spark, frame, timeout_s)["stats"].to_pylist()
        except WorkerError as error:
            if error.kind == BinlogDecodeError.__name__:
                raise BinlogDecodeError(error.said) from error
            raise
        return combine([json.loads(row) for row in rows])


def combine(stats: Sequence[Mapping[str, Any]]) -> JobResult:
    """One result from the statistics of all partitions."""
    tables: dict[int, TableSpan] = {}
    ddls: dict[int, DdlRecord] = {}
    skipped: dict[str, int] = {}
    worker_ms: dict[str, float] = {}
    for item in stats:
        for name, count in item["skipped"].items():
            skipped[name] = skipped.get(name, 0) + count
        for name, value in item["worker_ms"].items():
            worker_ms[name] = max(worker_ms.get(name, 0.0), round(value, 2))
        for raw in item["ddls"]:
            ddls.setdefault(raw["commit_ts"], DdlRecord(**raw))
        for key, (rows, first, last) in item["tables"].items():
            known = tables.get(int(key))
            if known is not None:
                rows, first, last = known.rows + rows, min(known.first_commit_ts, first), max(known.last_commit_ts, last)
            tables[int(key)] = TableSpan(rows, first, last)
    return JobResult(
        parts=tuple(Part.from_dict(item["part"]) for item in stats if item["part"]),
        transactions=sum(item["transactions"] for item in stats),
        ddls=tuple(ddls[commit_ts] for commit_ts in sorted(ddls)),
        tables=tables,
        skipped=skipped,
        worker_ms=worker_ms,
    )

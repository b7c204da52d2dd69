"""What Spark's Python workers do to land a window: read a range of a pump, explode it, write its part, and answer with
statistics.

The worker reads from the pump and writes to the relay log itself, so that no payload passes through the JVM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from etl.explode._left_out import without_unreadable
from etl.explode.exploder import BinlogDecodeError, Exploder
from etl.explode.source import read_range
from etl.spark.errors import told_to_client
from etl.spark.worker import freeze_loaded
from relay import RelayLog
from upstream import TLS

TASK_SCHEMA = pa.schema(
    [
        pa.field("n", pa.int32()),
        pa.field("token", pa.string()),
        pa.field("lo", pa.int64()),
        pa.field("hi", pa.int64()),
        pa.field("host", pa.string()),
        pa.field("range_lo", pa.int64()),
        pa.field("range_hi", pa.int64()),
        pa.field("skips", pa.string()),
    ]
)
STATS_SCHEMA = pa.schema([pa.field("stats", pa.string())])


@dataclass(frozen=True, slots=True)
class LandRanges:
    """Runs in Spark's Python workers: writes a part for each of its rows, which are in TASK_SCHEMA, and yields a row
    of statistics for it. Nothing of a window is in here, so that it is the same object from job to job.
    """

    relay_url: str
    cluster_id: int
    tls: TLS | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        with told_to_client():
            relay = RelayLog.open(self.relay_url)
            for batch in batches:
                for task in batch.to_pylist():
                    # With the attempt's number: a repeated task never meets the file of the one before.
                    stats = _answer(relay, self, task, f"{task['token']}.{context.taskAttemptId()}")
                    yield pa.record_batch([pa.array([json.dumps(stats)])], schema=STATS_SCHEMA)
        freeze_loaded()


def _answer(relay: RelayLog, job: LandRanges, task: Mapping[str, Any], token: str) -> dict[str, Any]:
    """The statistics of a range, or what in it can't be read."""
    try:
        return _land(relay, job, task, token)
    except BinlogDecodeError as error:
        return {"n": task["n"], "unreadable": str(error), "way_out": error.way_out}


def _land(relay: RelayLog, job: LandRanges, task: Mapping[str, Any], token: str) -> dict[str, Any]:
    """Read a range, explode it, write its part."""
    started = time.perf_counter()
    reading = exploding = 0.0
    exploder = Exploder(task["host"])
    batches = read_range(task["host"], job.cluster_id, task["range_lo"], task["range_hi"], job.tls)
    skips = json.loads(task["skips"])
    left_out: list[dict[str, Any]] = []

    def changes() -> Iterator[pa.RecordBatch]:
        nonlocal reading, exploding
        while True:
            mark = time.perf_counter()
            batch = next(batches, None)
            arrived = time.perf_counter()
            reading += arrived - mark
            if batch is None:
                return
            batch, unreadable = without_unreadable(batch, task["host"], skips)
            left_out.extend(unreadable)
            exploded = exploder.explode(batch)
            del batch  # a batch may hold a whole large transaction: one at a time
            mark = arrived
            for ready in exploded:
                exploding += time.perf_counter() - mark
                yield ready
                mark = time.perf_counter()
            exploding += time.perf_counter() - mark

    part = relay.write_part(task["lo"], task["hi"], token, task["n"], changes())
    totals = exploder.totals
    whole = time.perf_counter() - started
    return {
        "n": task["n"],
        "part": part.to_dict() if part else None,
        "transactions": totals.transactions + len(left_out),
        "left_out": left_out,
        "ddls": [ddl.to_dict() for ddl in totals.ddls],
        "tables": {
            str(i): [t.rows, t.first_commit_ts, t.last_commit_ts, t.oldest_version, t.newest_version]
            for i, t in totals.tables.items()
        },
        "skipped": {"internal_changes": totals.internal_changes, "fake_ddls": totals.fake_ddls},
        "worker_ms": {
            "read": reading * 1000,
            "explode": exploding * 1000,
            "write": (whole - reading - exploding) * 1000,
        },
    }

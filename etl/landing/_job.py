"""Run the Spark job that lands a window: read from the pumps, explode, write parts, report.

A row goes in for each pump and sub-range, and a part comes out of each, or one of all rows of a
small window. The worker reads from the pump and writes to the relay log itself, so no payload
passes through the JVM. The parts are durable when the job has ended, and mean nothing until the
client commits the window's record.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sluice.etl.landing.extract import TASK_SCHEMA, BinlogDecodeError, DdlRecord, PumpRange
from sluice.etl.landing.extract.copies import SharedTransactions, shared_transactions
from sluice.etl.landing.planner import WindowPlan
from sluice.etl.spark.errors import SparkError
from sluice.etl.spark.job import window_range
from sluice.etl.spark.resilient_function import LOCAL_FALLBACK_BYTES, ResilientFunction
from sluice.relay import Part

if TYPE_CHECKING:
    from sluice.tidb import NodeStatus


@dataclass(frozen=True, slots=True)
class TableSpan:
    """A table's rows in a window: first and last commit_ts, oldest and newest schema version."""

    rows: int
    first_commit_ts: int
    last_commit_ts: int
    oldest_version: int
    newest_version: int


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a landing job, all partitions together."""

    parts: tuple[Part, ...]
    transactions: int
    ddls: tuple[DdlRecord, ...]
    """DDL by commit_ts, each once; of one commit_ts by job."""
    tables: Mapping[int, TableSpan]
    skipped: Mapping[str, int]
    worker_ms: Mapping[str, float]
    """Times of the slowest range: read, explode, write."""
    left_out: tuple[Mapping[str, Any], ...] = ()
    """Skipped transactions that can't be read: {commit_ts, start_ts, why}."""
    is_captured: bool = False
    """True if a pump captured some of it from TiKV."""
    lacks_tables: bool = False
    """True if there are rows of tables that `masks` doesn't know. Then there is nothing else."""
    shared: tuple[SharedTransactions, ...] = ()
    """What several pumps have both sent; of a small window the worker has compared it."""


class LandingJob:
    """Land windows in Spark's workers. Threads may run jobs at once."""

    def __init__(self, function: ResilientFunction) -> None:
        """Keep `function`: `LandRanges` in Spark's workers."""
        self._function = function

    def warm_up(self, pumps: Sequence[NodeStatus], ts: int, timeout_s: float) -> None:
        """Land nothing from these pumps, so that Python workers start and classes load.

        The first job takes seconds for that. Errors are ignored: the first real job raises them.
        """
        ranges = tuple(PumpRange(pump.host, ts, ts, share=pump.captured_share) for pump in pumps)
        with contextlib.suppress(Exception):
            self.run(WindowPlan(ts, ts, ts, ranges, 0, 0, limited=False), "warm", timeout_s)

    def run(  # noqa: PLR0913 options by name
        self,
        plan: WindowPlan,
        token: str,
        timeout_s: float,
        skips: Collection[int] = (),
        *,
        alone: bool = True,
        masks: str = "",
    ) -> JobResult:
        """Land the plan's ranges; the parts are durable on return.

        `token` must not have been used before. Transactions at `skips` are excluded if they can't
        be read. `alone`: no other job is running. `masks`: what of the rows is masked, as
        `MaskOrder.text` or WITHOUT_VALUES, "" for nothing. A job that takes longer than `timeout_s`
        is interrupted. Raises BinlogDecodeError and SparkError, which includes WorkerError.
        """
        if not plan.ranges:
            return JobResult((), 0, (), {}, {}, {})
        is_small = alone and not plan.limited and plan.bytes <= LOCAL_FALLBACK_BYTES
        has_neighbours = not is_small and len({wanted.host for wanted in plan.ranges}) > 1
        numbers = itertools.count()
        tasks = [
            {
                "n": next(numbers),
                "token": token,
                "lo": plan.lo,
                "hi": plan.hi,
                "host": wanted.host,
                "range_lo": wanted.lo,
                "range_hi": wanted.hi,
                "skips": [ts for ts in skips if wanted.lo < ts <= wanted.hi],
                "is_small": is_small,
                "has_neighbours": has_neighbours,
                "share": wanted.share,
                **({"masks": masks} if masks else {}),
                "others": [
                    {
                        "n": next(numbers),
                        "host": other.host,
                        "share": other.share,
                        "window": base64.b64encode(other.window).decode(),
                    }
                    for other in wanted.others
                ],
            }
            for wanted in plan.ranges
        ]
        columns = [json.dumps(task) for task in tasks], [wanted.window for wanted in plan.ranges]
        batches = self._function(
            pa.table(columns, TASK_SCHEMA), timeout_s, alone=is_small, is_small=is_small,
            label=window_range(plan.lo, plan.hi),
        )  # fmt: skip
        answers = [json.loads(row) for batch in batches for row in batch.column(0).to_pylist()]
        for answer in answers:
            if "unreadable" in answer:
                raise BinlogDecodeError(answer["unreadable"], hint=answer["hint"])
        if any("lacks_tables" in answer for answer in answers):
            return JobResult((), 0, (), {}, {}, {}, lacks_tables=True)
        found = sorted(answer["n"] for answer in answers)
        if found != list(range(count := next(numbers))):
            raise SparkError(
                f"Spark answered for the ranges {found} of {count} ranges in ({plan.lo},"
                f" {plan.hi}]",
                transient=True,
            )
        shared = shared_transactions(tasks, answers)
        return replace(combine(answers), shared=shared)


def combine(stats: Sequence[Mapping[str, Any]]) -> JobResult:
    """Return one result from the statistics of all partitions."""
    tables: dict[int, TableSpan] = {}
    ddls: dict[tuple[int, int], DdlRecord] = {}
    skipped: dict[str, int] = {}
    worker_ms: dict[str, float] = {}
    for item in stats:
        for name, count in item["skipped"].items():
            skipped[name] = skipped.get(name, 0) + count
        if sum(item["worker_ms"].values()) > sum(worker_ms.values()):
            worker_ms = item["worker_ms"]
        for raw in item["ddls"]:
            ddls.setdefault((raw["commit_ts"], raw["start_ts"]), DdlRecord(**raw))
        for key, (rows, first, last, oldest, newest) in item["tables"].items():
            known = tables.get(int(key))
            if known is not None:
                rows, first, last = (
                    known.rows + rows,
                    min(known.first_commit_ts, first),
                    max(known.last_commit_ts, last),
                )
                oldest, newest = (
                    min(known.oldest_version, oldest),
                    max(known.newest_version, newest),
                )
            tables[int(key)] = TableSpan(rows, first, last, oldest, newest)
    return JobResult(
        parts=tuple(Part.from_dict(item["part"]) for item in stats if item["part"]),
        transactions=sum(item["transactions"] for item in stats),
        ddls=tuple(
            sorted(ddls.values(), key=lambda ddl: (ddl.commit_ts, ddl.job_id, ddl.start_ts))
        ),
        tables=tables,
        skipped=skipped,
        worker_ms=worker_ms,
        is_captured=any(item.get("is_captured", False) for item in stats),
        left_out=tuple(
            {
                (entry["commit_ts"], entry["start_ts"]): entry
                for item in stats
                for entry in item.get("left_out", ())
            }.values()
        ),
    )

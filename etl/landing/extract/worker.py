"""Land a range in Spark's Python workers: read it from a pump, explode it, write its part.

They answer with statistics. The worker reads from the pump and writes to the relay log itself, so
that no payload passes through the JVM. What is in a small window came with its bounds, and is
handed over: to ask for it again would cost more than all else.
"""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.etl.changes.masks.landed_rows import (
    MaskOrder,
    UnknownTableRows,
    masked_batches,
    without_values,
)
from sluice.etl.landing.extract.captured_parts import PartJoiner, is_captured
from sluice.etl.landing.extract.copies import Keys, copies_differ, encode_keys, keys_of
from sluice.etl.landing.extract.row_extractor import BinlogDecodeError, RowExtractor
from sluice.etl.landing.extract.shares import in_order, join_shares
from sluice.etl.landing.extract.source import prefetched_range, read_range
from sluice.etl.spark.worker_tuning import tune_malloc, worker_function
from sluice.relay import CopiesDifferError, RelayLog, merge
from sluice.tidb import TLS
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.rows import RowDecodeError
from sluice.tidb.window_schema import WINDOW_SCHEMA

TASK_SCHEMA = pa.schema([pa.field("task", pa.string()), pa.field("window", pa.binary())])
"""A row a range: what is wanted of it as JSON, and what the pump has sent of it."""
WITHOUT_VALUES = "none"
"""In place of a task's masks: its part has no rows, only what changed when, and of which table."""
STATS_SCHEMA = pa.schema([pa.field("stats", pa.string())])


@dataclass(frozen=True, slots=True)
class LandRanges:
    """Write a part for each of its rows, which are in TASK_SCHEMA, and yield statistics.

    It runs in Spark's Python workers. Of small ranges that come together it writes one part, which
    the first one's statistics have: a file costs more than what is in it. Nothing of a window is
    in here, so that it is the same object from job to job.
    """

    relay_url: str
    cluster_id: int
    tls: TLS | None = None

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = (
            TaskContext.get()
        )  # none in the process of the landing itself, see `sluice.etl.spark.resilient_function`
        attempt = context.taskAttemptId() if context is not None else "here"
        relay = RelayLog.open(self.relay_url)
        for batch in batches:
            tasks = [
                json.loads(row["task"]) | {"window": row["window"]} for row in batch.to_pylist()
            ]
            is_small = all(task.get("is_small") for task in tasks)
            if not is_small:
                tune_malloc()
            groups = [[task, *_others(task)] for task in tasks]
            # A small window of shares is one task.
            together = [list(itertools.chain.from_iterable(groups))]
            for group in together if is_small else groups:
                # With the attempt's number: a repeated task never meets the file of the one
                # before.
                answers = _process_ranges(relay, self, group, f"{group[0]['token']}.{attempt}")
                yield pa.record_batch(
                    [pa.array([json.dumps(stats) for stats in answers])], schema=STATS_SCHEMA
                )


def _others(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks of the same range on the pumps of the other shares."""
    return [
        {**task, **other, "window": base64.b64decode(other["window"])}
        for other in task.get("others", ())
    ]


def _process_ranges(
    relay: RelayLog, job: LandRanges, tasks: Sequence[Mapping[str, Any]], token: str
) -> list[dict[str, Any]]:
    """Return the statistics of ranges that become one part, or what in one can't be read.

    They are the same range of all shares, or ranges of pumps of which each has whole transactions.
    """
    started = time.perf_counter()
    ranges = [
        _RangeExtraction(job, task) for task in tasks
    ]  # all pumps are asked before the first answer is waited for
    first = tasks[0]
    current = first_range = ranges[0]

    def changes() -> Iterator[pa.RecordBatch]:
        nonlocal current
        if len(ranges) == 1:
            yield from current.changes()
            return
        if first.get("share"):
            yield from join_shares([each.changes_in_order() for each in ranges])
            return
        tables = []
        for current in ranges:
            tables.append(pa.Table.from_batches(current.transactions(), WINDOW_SCHEMA))
        skips = {ts for task in tasks for ts in task["skips"]}
        try:
            merged = merge(tables, skips)
        except CopiesDifferError as differ:
            hosts = [tasks[i]["host"] for i in differ.owners]
            raise copies_differ(hosts, differ.commit_ts, differ.start_ts) from None
        try:
            found = list(first_range.changes_of(merged))
        except BinlogDecodeError:
            for current, table in zip(ranges, tables):  # whose it is
                for batch in table.to_batches():
                    for _ in RowExtractor(current.task["host"]).extract(batch):
                        pass
            raise
        yield from found

    written = changes()
    if wanted := first.get("masks"):
        skips = {ts for task in tasks for ts in task["skips"]}
        written = _masked(written, wanted, skips)
    try:
        part = relay.write_part(first["lo"], first["hi"], token, first["n"], written)
    except BinlogDecodeError as error:
        return [{"n": current.task["n"], "unreadable": str(error), "hint": error.hint}]
    except UnknownTableRows:
        return [{"n": task["n"], "lacks_tables": True} for task in tasks]
    whole = time.perf_counter() - started
    reading, exploding = (
        sum(each.reading for each in ranges),
        sum(each.exploding for each in ranges),
    )
    spent = {"read": reading, "explode": exploding, "write": whole - reading - exploding}
    answers = [each.stats() for each in ranges]
    if first.get("share") and len(ranges) > 1:
        for answer in answers:
            answer |= {"transactions": 0, "keys": ""}
        answers[0]["transactions"] = len(
            np.unique(np.concatenate([each.keys() for each in ranges]))
        )
    answers[0] |= {
        "part": part.to_dict() if part else None,
        "worker_ms": {name: seconds * 1000 for name, seconds in spent.items()},
    }
    return answers


def _masked(
    changes: Iterator[pa.RecordBatch], wanted: str, skips: Collection[int]
) -> Iterator[pa.RecordBatch]:
    """Yield changes as a task's masks have them.

    Raises BinlogDecodeError for a row that can't be masked, as it can't be read.
    """
    if wanted == WITHOUT_VALUES:
        yield from without_values(changes)
        return
    try:
        yield from masked_batches(changes, MaskOrder.from_text(wanted), skips)
    except (RowDecodeError, CodecError) as error:
        raise BinlogDecodeError(
            f"a row of a masked table can't be read, so it isn't landed: {error}",
            hint=(
                "`sluice txn skip` with its commit_ts leaves the transaction out; then copy its"
                " table: `sluice backfill`"
            ),
        ) from None


class _RangeExtraction:
    """A pump's range while it is read and exploded, and how many seconds that takes."""

    def __init__(self, job: LandRanges, task: Mapping[str, Any]) -> None:
        self.task = task
        self.reading = self.exploding = 0.0
        self._exploder = RowExtractor(task["host"])
        self._parts = PartJoiner()
        host, lo, hi = task["host"], task["range_lo"], task["range_hi"]
        window = task.get("window")
        self._batches = (
            prefetched_range(host, window, lo, hi)
            if window
            else read_range(host, job.cluster_id, lo, hi, job.tls, task.get("share", ""))
        )
        self._left_out: list[dict[str, Any]] = []
        self._transactions = 0
        self._keys: list[Keys] = []
        self._is_captured = False

    def transactions(self) -> Iterator[pa.RecordBatch]:
        """Yield those that can be read, in WINDOW_SCHEMA."""
        skips = self.task["skips"]
        while True:
            mark = time.perf_counter()
            batch = next(self._batches, None)
            self.reading += time.perf_counter() - mark
            if batch is None:
                return
            self._transactions += batch.num_rows
            self._is_captured = self._is_captured or is_captured(batch)
            batch, unreadable = drop_skipped_undecodable(batch, self.task["host"], skips)
            self._left_out.extend(unreadable)
            if self.task.get("has_neighbours") or self.task.get("share"):
                self._keys.append(keys_of(batch))
            yield batch

    def changes(self) -> Iterator[pa.RecordBatch]:
        """Yield its row changes, in PART_SCHEMA."""
        for batch in self.transactions():
            exploded = self._explode(batch)
            del batch  # a batch may hold a whole large transaction: one at a time
            yield from exploded

    def changes_in_order(self) -> Iterator[pa.Table]:
        """Yield its row changes with deletes first, then updates, then inserts."""
        for batch in self.transactions():
            table = in_order(self._explode(batch))
            del batch
            yield table

    def keys(self) -> Keys:
        """Return the timestamps of a share's transactions that were read."""
        found = np.concatenate(self._keys or [keys_of(WINDOW_SCHEMA.empty_table())])
        for (commit_ts, part_ts), own in self._parts.owners.items():
            is_part = (found["commit_ts"] == commit_ts) & (found["start_ts"] == part_ts)
            found["start_ts"][is_part] = own
        return found

    def changes_of(self, transactions: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the row changes of transactions of several ranges, which count as this one's."""
        for batch in transactions.combine_chunks().to_batches():
            yield from self._explode(batch)

    def _explode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._parts.find(batch)
        exploded = self._exploder.extract(batch)
        del batch
        mark = time.perf_counter()
        for ready in exploded:
            self.exploding += time.perf_counter() - mark
            yield self._parts.join(ready)
            mark = time.perf_counter()
        self.exploding += time.perf_counter() - mark

    def stats(self) -> dict[str, Any]:
        """Return what was in it."""
        totals = self._exploder.totals
        return {
            "n": self.task["n"],
            "part": None,
            "transactions": self._transactions - self._parts.surplus,
            "left_out": self._left_out,
            "ddls": [ddl.to_dict() for ddl in totals.ddls],
            "tables": totals.by_table.tables(),
            "skipped": {"internal_changes": totals.internal_changes, "fake_ddls": totals.fake_ddls},
            "worker_ms": {},
            "is_captured": self._is_captured,
            "keys": encode_keys(self._keys),
        }


def drop_skipped_undecodable(
    batch: pa.RecordBatch, host: str, skips: Collection[int]
) -> tuple[pa.RecordBatch, list[dict[str, Any]]]:
    """Return a batch without the unreadable transactions at `skips` (TSOs), and these.

    The batch is in WINDOW_SCHEMA. `host`: the pump of the batch. Excluded transactions are
    {commit_ts, start_ts, why}. What can be read is landed whatever an operator decided: it is left
    out where it is applied, and a DDL still counts for the schema.
    """
    commit_ts = batch["commit_ts"].to_numpy()
    left_out: list[dict[str, Any]] = []
    keep = np.ones(len(commit_ts), bool)
    for i in np.flatnonzero(np.isin(commit_ts, list(skips))).tolist() if skips else ():
        try:
            for _ in RowExtractor(host).extract(batch.slice(i, 1)):
                pass
        except BinlogDecodeError as error:
            keep[i] = False
            left_out.append(
                {
                    "commit_ts": int(commit_ts[i]),
                    "start_ts": batch["start_ts"][i].as_py(),
                    "why": str(error.args[0]),
                }
            )
    return (batch.filter(pa.array(keep)) if left_out else batch), left_out

"""A plan by Spark: workers read portions of the log and chunks of the base and deal rows to buckets, others bring each
bucket through changes and DDL. Nothing but what `Finish` makes of the rows comes back.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from etl.asof.bucket import Piece, computed
from etl.asof.errors import AsOfError
from etl.asof.finishing import Finish, Result
from etl.asof.pieces import pieces
from etl.asof.plan import PIECES, Plan
from etl.spark import session as spark_session
from etl.spark.errors import WorkerError, told_to_client
from etl.spark.frame import TaskFrame
from etl.spark.job import stream
from etl.spark.judge import Judge
from etl.spark.worker import freeze_loaded

TASKS = pa.schema([pa.field("number", pa.int32())])
RESULTS = pa.schema([pa.field("moment", pa.int64()), pa.field("name", pa.string()), pa.field("payload", pa.binary())])
_MARK = "as of: "
_ORDER = ("bucket", "step", "table_id", "task", "number")
_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Deal:
    """Runs in Spark's Python workers: tasks become PIECES."""

    plan: Plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_to_client(), _marked():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from pieces(self.plan, number)
        freeze_loaded()


@dataclass(frozen=True, slots=True)
class Compute:
    """Runs in Spark's Python workers: pieces, bucket after bucket, become RESULTS."""

    plan: Plan
    finish: Finish

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_to_client(), _marked():
            found = itertools.chain.from_iterable(map(rows_of, batches))
            for bucket, own in itertools.groupby(found, key=lambda piece: piece.bucket):
                for result in finished(self.plan, bucket, own, self.finish):
                    yield pa.RecordBatch.from_pylist([result._asdict()], RESULTS)
        freeze_loaded()


def finished(plan: Plan, bucket: int, own: Iterator[Piece], finish: Finish) -> Iterator[Result]:
    """The results of one bucket; `own` are its pieces in order."""
    family = plan.family_of(bucket).family
    yield from finish(family, computed(family, own))


def rows_of(batch: pa.RecordBatch) -> Iterator[Piece]:
    """The pieces of a batch in PIECES."""
    columns = [column.to_pylist() for column in batch.columns[:-1]]
    for number, values in enumerate(zip(*columns, strict=True)):
        yield Piece._make((*values, batch.columns[-1][number].as_buffer()))


class BySpark:
    """Runs plans on a Spark Connect server."""

    def __init__(self, remote: str) -> None:
        # A session of its own: two that share one would end each other's jobs.
        self._place = remote, f"as-of {secrets.token_hex(6)}"

    def __call__(self, plan: Plan, finish: Finish) -> Iterator[Result]:
        """Results as they come. Raises AsOfError, SparkError."""
        with _unmarked(), Judge().telling():
            spark = spark_session.attach(*self._place)
            try:
                tasks = pa.table({"number": pa.array(range(len(plan.tasks)), pa.int32())}, schema=TASKS)
                dealt = TaskFrame(spark, Deal(plan), TASKS, PIECES).of(tasks)
                in_order = dealt.repartition(plan.buckets, "bucket").sortWithinPartitions(*_ORDER)
                for batch in stream(
                    spark, in_order.mapInArrow(Compute(replace(plan, tasks=()), finish), _RESULT_TYPES), _TIMEOUT_S
                ):
                    for row in batch.to_pylist():
                        yield Result(**row)
            finally:
                with contextlib.suppress(Exception):  # whoever asked may have had enough
                    spark.interruptAll()
                spark_session.close(spark)


@contextlib.contextmanager
def _marked() -> Iterator[None]:
    """Only the text of an error leaves a worker: this one is known by it."""
    try:
        yield
    except AsOfError as error:
        raise AsOfError(f"{_MARK}{error}", way_out=error.way_out) from error


@contextlib.contextmanager
def _unmarked() -> Iterator[None]:
    try:
        yield
    except WorkerError as error:
        if not str(error).startswith(_MARK):
            raise
        raise AsOfError(str(error).removeprefix(_MARK), way_out=error.way_out) from error


_RESULT_TYPES = "moment long, name string, payload binary"


def here(plan: Plan, finish: Finish) -> Iterator[Result]:
    """The same in this process, without Spark: for tests, and where there is little."""
    found: dict[int, list[Piece]] = {}
    for number in range(len(plan.tasks)):
        for batch in pieces(plan, number):
            for piece in rows_of(batch):
                found.setdefault(piece.bucket, []).append(piece)
    for bucket, own in sorted(found.items()):
        yield from finished(plan, bucket, iter(sorted(own, key=_in_order)), finish)


def _in_order(piece: Piece) -> tuple[int, ...]:
    return piece.step, piece.table_id, piece.task, piece.number

"""A plan by Spark: workers read portions of the log and chunks of the base and deal rows to buckets, others bring each
bucket through changes and DDL. Nothing but what `Finish` makes of the rows comes back.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from etl.asof.bucket import Piece
from etl.asof.errors import AsOfError
from etl.asof.finishing import Finish, Result
from etl.asof.pieces import pieces
from etl.asof.plan import PIECES, Plan
from etl.asof.worker import MARK, Compute, Deal, finished, rows_of
from etl.settings import Spark
from etl.spark import session as spark_session
from etl.spark.elsewhere import function_on
from etl.spark.errors import WorkerError
from etl.spark.frame import TaskFrame
from etl.spark.job import stream
from etl.spark.judge import Judge
from etl.spark.place import Place

TASKS = pa.schema([pa.field("number", pa.int32())])
_ORDER = ("bucket", "step", "table_id", "task", "number")
_TIMEOUT_S = 3600.0


class BySpark:
    """Runs plans on a Spark Connect server."""

    def __init__(self, server: Spark, archive_url: str) -> None:
        # A session of its own: two that share one would end each other's jobs.
        self._place = Place(server, f"as-of {secrets.token_hex(6)}", archive_url)

    def __call__(self, plan: Plan, finish: Finish) -> Iterator[Result]:
        """Results as they come. Raises AsOfError, SparkError."""
        with unmarked(), Judge().telling():
            spark = spark_session.connect(self._place)
            try:
                compute = function_on(spark, Compute(replace(plan, tasks=()), finish))
                computed = in_order(spark, plan).mapInArrow(compute, RESULT_TYPES)
                for batch in stream(spark, computed, _TIMEOUT_S):
                    for row in batch.to_pylist():
                        yield Result(**row)
            finally:
                with contextlib.suppress(Exception):  # whoever asked may have had enough
                    spark.interruptAll()
                spark_session.close(spark)


def in_order(spark: Any, plan: Plan) -> Any:
    """The frame of a plan's pieces, each bucket's together and in order."""
    tasks = pa.table({"number": pa.array(range(len(plan.tasks)), pa.int32())}, schema=TASKS)
    dealt = TaskFrame(spark, Deal(plan), TASKS, PIECES).of(tasks)
    return dealt.repartition(plan.buckets, "bucket").sortWithinPartitions(*_ORDER)


@contextlib.contextmanager
def unmarked() -> Iterator[None]:
    """An AsOfError that left a worker is one again."""
    try:
        yield
    except WorkerError as error:
        if not str(error).startswith(MARK):
            raise
        raise AsOfError(str(error).removeprefix(MARK), way_out=error.way_out) from error


RESULT_TYPES = "moment long, name string, payload binary"


def here(plan: Plan, finish: Finish) -> Iterator[Result]:
    """The same in this process, without Spark: for tests, and where there is little."""
    found: dict[int, list[Piece]] = {}
    for number in range(len(plan.tasks)):
        for batch in pieces(plan, number):
            for piece in rows_of(batch):
                found.setdefault(piece.bucket, []).append(piece)
    for bucket, own in sorted(found.items()):
        yield from finished(plan, bucket, iter(sorted(own, key=_rank)), finish)


def _rank(piece: Piece) -> tuple[int, ...]:
    return piece.step, piece.table_id, piece.task, piece.number

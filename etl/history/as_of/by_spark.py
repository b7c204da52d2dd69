"""Execute a plan by Spark.

Workers read portions of the log and chunks of the snapshot and distribute rows to buckets, others
bring each bucket through changes and DDL. Only the result of `Aggregation` over the rows comes
back, and where that is large by files: see `sluice.etl.history.as_of.result_files`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql.pandas.types import from_arrow_schema

from sluice.etl.history.as_of.aggregations import AggregateResult, Aggregation
from sluice.etl.history.as_of.bucket import ShufflePiece
from sluice.etl.history.as_of.read_tasks import PIECES, TimeTravelPlan
from sluice.etl.history.as_of.result_files import INLINE_BYTES, ResultFiles
from sluice.etl.history.as_of.shuffle import shuffle_pieces
from sluice.etl.history.as_of.untouched import untouched_first
from sluice.etl.history.as_of.worker import ERROR_MARK, Aggregate, Shuffle, bucket_results, rows_of
from sluice.etl.history.errors import AsOfError
from sluice.etl.settings import Spark
from sluice.etl.spark import session as spark_session
from sluice.etl.spark.error_translation import ErrorTranslator
from sluice.etl.spark.errors import WorkerError
from sluice.etl.spark.job import stream
from sluice.etl.spark.job_calls import WorkerFunction
from sluice.etl.spark.remote_workers import wrap_for_workers
from sluice.etl.spark.session_target import BATCH, SessionTarget

_PIECE_TYPES = from_arrow_schema(PIECES)
_ORDER = ("bucket", "step", "table_id", "task", "number")
_JOB_TIMEOUT_S = 3600.0


class SparkExecution:
    """Run plans on a Spark Connect server."""

    def __init__(self, server: Spark, archive_url: str, inline_bytes: int = INLINE_BYTES) -> None:
        self._place = SessionTarget(server, BATCH, archive_url)
        self._inline_bytes = inline_bytes

    def __call__(self, plan: TimeTravelPlan, finish: Aggregation) -> Iterator[AggregateResult]:
        """Yield results as they come. Raises AsOfError, SparkError, RelayCorruptError."""
        with (
            ResultFiles(self._place.url, self._inline_bytes) as files,
            restored_errors(),
            ErrorTranslator().translating(),
        ):
            spark = spark_session.connect(self._place)
            try:
                wrap = partial(wrap_for_workers, spark)

                def run(function: WorkerFunction, count: int) -> Iterator[AggregateResult]:
                    tasks = spark.range(0, count, 1, count)
                    return _results(spark, tasks.mapInArrow(wrap(function), RESULT_TYPES))

                left = yield from untouched_first(plan, finish, files, run)
                if left.tasks:
                    compute = wrap(Aggregate(replace(left, tasks=()), files.of(finish)))
                    pieces = ordered_pieces(spark, left, wrap)
                    yield from files.read(_results(spark, pieces.mapInArrow(compute, RESULT_TYPES)))
            finally:
                spark_session.close(spark)


def _results(spark: Any, frame: Any) -> Iterator[AggregateResult]:
    for batch in stream(spark, frame, _JOB_TIMEOUT_S):
        yield from (AggregateResult(**row) for row in batch.to_pylist())


def ordered_pieces(
    spark: Any, plan: TimeTravelPlan, wrap: Callable[[WorkerFunction], WorkerFunction]
) -> Any:
    """Return the frame of a plan's pieces, each bucket's together and in order.

    A portion is a task of its own. So a lost executor or a straggler costs one of them, and Spark
    asks for as many executors as there is work. `wrap` prepares a function for the workers.
    """
    number = max(1, len(plan.tasks))
    dealt = spark.range(0, len(plan.tasks), 1, number).mapInArrow(wrap(Shuffle(plan)), _PIECE_TYPES)
    return dealt.repartition(plan.buckets, "bucket").sortWithinPartitions(*_ORDER)


@contextlib.contextmanager
def restored_errors() -> Iterator[None]:
    """Restore an AsOfError that a worker raised."""
    try:
        yield
    except WorkerError as error:
        if not str(error).startswith(ERROR_MARK):
            raise
        raise AsOfError(str(error).removeprefix(ERROR_MARK), hint=error.hint) from error


RESULT_TYPES = "moment long, name string, payload binary"


def run_locally(plan: TimeTravelPlan, finish: Aggregation) -> Iterator[AggregateResult]:
    """Execute a plan in this process, without Spark: for tests, and for little data."""
    found: dict[int, list[ShufflePiece]] = {}
    for number in range(len(plan.tasks)):
        for batch in shuffle_pieces(plan, number):
            for piece in rows_of(batch):
                found.setdefault(piece.bucket, []).append(piece)
    for bucket, own in sorted(found.items()):
        yield from bucket_results(plan, bucket, iter(sorted(own, key=_rank)), finish)


def _rank(piece: ShufflePiece) -> tuple[int, ...]:
    return piece.step, piece.table_id, piece.task, piece.number

"""Execute a plan's tasks in Spark's Python workers.

Spark finds it by this module's path, so nothing is imported here that the client alone needs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sluice.etl.history.as_of.aggregations import AggregateResult, Aggregation
from sluice.etl.history.as_of.bucket import ShufflePiece, compute_bucket
from sluice.etl.history.as_of.read_tasks import TimeTravelPlan
from sluice.etl.history.as_of.result_files import result_batch
from sluice.etl.history.as_of.shuffle import shuffle_pieces
from sluice.etl.history.errors import AsOfError
from sluice.etl.spark.worker_tuning import column_values, worker_function

__all__ = ["ERROR_MARK", "Aggregate", "Shuffle", "bucket_results", "marked_errors", "rows_of"]

ERROR_MARK = "as of: "
"""An AsOfError's text begins with it where it leaves a worker."""


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Run in Spark's Python workers: tasks become PIECES."""

    plan: TimeTravelPlan

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marked_errors():
            for number in column_values(batches):
                yield from shuffle_pieces(self.plan, number)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Run in Spark's Python workers: pieces, bucket after bucket, become RESULTS."""

    plan: TimeTravelPlan
    finish: Aggregation

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marked_errors():
            found = itertools.chain.from_iterable(map(rows_of, batches))
            for bucket, own in itertools.groupby(found, key=lambda piece: piece.bucket):
                for result in bucket_results(self.plan, bucket, own, self.finish):
                    yield result_batch(result)


def bucket_results(
    plan: TimeTravelPlan, bucket: int, own: Iterator[ShufflePiece], finish: Aggregation
) -> Iterator[AggregateResult]:
    """Yield the results of one bucket; `own` are its pieces in order."""
    family = plan.family_of(bucket).family
    yield from finish(family, compute_bucket(family, own))


def rows_of(batch: pa.RecordBatch) -> Iterator[ShufflePiece]:
    """Yield the pieces of a batch in PIECES."""
    columns = [column.to_pylist() for column in batch.columns[:-1]]
    for number, values in enumerate(zip(*columns, strict=True)):
        yield ShufflePiece._make((*values, batch.columns[-1][number].as_buffer()))


@contextlib.contextmanager
def marked_errors() -> Iterator[None]:
    """Mark AsOfError in the text of an error, which is all that leaves a worker."""
    try:
        yield
    except AsOfError as error:
        raise AsOfError(f"{ERROR_MARK}{error}", hint=error.hint) from error

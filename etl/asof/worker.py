"""What Spark's Python workers do for a plan. Spark finds it by this module's path, so nothing is imported here that the
client alone needs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from etl.asof.bucket import Piece, computed
from etl.asof.errors import AsOfError
from etl.asof.finishing import Finish, Result
from etl.asof.pieces import pieces
from etl.asof.plan import Plan
from etl.spark.errors import told_to_client
from etl.spark.worker import freeze_loaded

__all__ = ["MARK", "RESULTS", "Compute", "Deal", "finished", "rows_of"]

RESULTS = pa.schema([pa.field("moment", pa.int64()), pa.field("name", pa.string()), pa.field("payload", pa.binary())])
MARK = "as of: "
"""An AsOfError's text begins with it where it leaves a worker."""


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


@contextlib.contextmanager
def _marked() -> Iterator[None]:
    """Only the text of an error leaves a worker: this one is known by it."""
    try:
        yield
    except AsOfError as error:
        raise AsOfError(f"{MARK}{error}", way_out=error.way_out) from error

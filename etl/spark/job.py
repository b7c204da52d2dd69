"""Running one job on Spark Connect, with an end to its patience."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def stream(spark: Any, frame: Any, timeout_s: float) -> Iterator[pa.RecordBatch]:
    """The rows of `frame` as they come; a job that lets `timeout_s` pass between two batches is interrupted. Raises
    Spark's errors; see `etl.spark.errors.Judge`.
    """
    # DataFrame.toArrow would gather everything, and ask the server for a schema that is known.
    tables = spark.client.to_table_as_iterator(frame._plan.to_proto(spark.client), frame._plan.observations)
    while True:
        timer = threading.Timer(timeout_s, spark.interruptAll)
        timer.daemon = True
        timer.start()
        try:
            table = next(tables, None)
        finally:
            timer.cancel()
        if table is None:
            return
        if isinstance(table, pa.Table):  # a schema may come too
            yield from table.to_batches()


def collect(spark: Any, frame: Any, timeout_s: float) -> pa.Table:
    """All rows of `frame`, which has at least one; see `stream`."""
    return pa.Table.from_batches(list(stream(spark, frame, timeout_s)))

"""Running one job on Spark Connect, with an end to its patience."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
from pyspark.errors import PySparkException

from sluice.etl.spark.errors import SparkJobTimeout


def stream(spark: Any, frame: Any, timeout_s: float) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `frame` as they come.

    A job that lets `timeout_s` pass between two batches is interrupted. Raises SilentSparkError for
    such a one, and Spark's errors; see `sluice.etl.spark.errors.Judge`.
    """
    # DataFrame.toArrow would gather everything, and ask the server for a schema that is known.
    tables = spark.client.to_table_as_iterator(
        frame._plan.to_proto(spark.client), frame._plan.observations
    )
    silent = threading.Event()

    def give_up() -> None:
        silent.set()
        spark.interruptAll()

    while True:
        timer = threading.Timer(timeout_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            table = next(tables, None)
        except (PySparkException, grpc.RpcError) as error:
            if silent.is_set():
                raise SparkJobTimeout(
                    f"Spark gave nothing for {timeout_s:g} s, so the job was interrupted"
                ) from error
            raise
        finally:
            timer.cancel()
        if table is None:
            return
        if isinstance(table, pa.Table):  # a schema may come too
            yield from table.to_batches()

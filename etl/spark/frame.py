"""Frames of a few rows through one Python function, built at the least cost.

``createDataFrame(...).mapInArrow(...)`` asks the server for settings, for the schema of the rows
and for the meaning of the result's schema: three round trips, a quarter of a small job's time. All
of it is known beforehand. The function stays the same from job to job, and what a job is to do
comes in its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.plan import LocalRelation
from pyspark.sql.pandas.types import from_arrow_schema

from sluice.etl.spark.remote_workers import wrap_for_workers

_INLINE_BYTES = 32 * 2**20  # what is sent inside of a plan must fit into one message of 128 MiB


class TaskFrame:
    """A function that maps record batches in `tasks` to others in `results`, in Spark's workers.

    Types are those that Spark has too. Rows are spread evenly over the tasks of the job, which are
    as many as there are cores, or rows.
    """

    def __init__(
        self,
        spark: Any,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        tasks: pa.Schema,
        results: pa.Schema,
    ) -> None:
        self._spark = spark
        self._function = wrap_for_workers(spark, function)
        self._tasks = tasks
        self._columns = from_arrow_schema(tasks)
        self._results = from_arrow_schema(
            pa.schema([field.with_nullable(nullable=True) for field in results])
        )

    def of(self, tasks: pa.Table) -> DataFrame:
        """Return the frame that maps these rows."""
        table = tasks.cast(self._tasks)
        if table.nbytes > _INLINE_BYTES:
            frame = self._spark.createDataFrame(table)
        else:
            frame = DataFrame(LocalRelation(table), self._spark)
            frame._cached_schema = self._columns
        return frame.mapInArrow(self._function, self._results)

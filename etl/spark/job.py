"""Running one job on Spark Connect, with an end to its patience."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.plan import LocalRelation
from pyspark.sql.pandas.types import from_arrow_schema

from sluice.etl.spark.errors import SparkJobTimeout
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


@contextlib.contextmanager
def tagged(spark: Any, *tags: str) -> Iterator[None]:
    """Give the jobs that this thread begins meanwhile tags, and the name of the session's work.

    Spark shows the tags with each job: `sluice apply at s3://bucket/relay`. Empty ones are left
    out.
    """
    tags = tuple(each for each in (*tags, getattr(spark, "sluice_name", "")) if each)
    for each in tags:
        spark.addTag(each)
    try:
        yield
    finally:
        for each in tags:
            spark.removeTag(each)


def window_range(lo: int, hi: int) -> str:
    """Return the tag of a job that works on windows from `lo` (exclusive) through `hi` (TSO)."""
    return f"windows after {lo} through {hi}"


def stream(
    spark: Any, frame: Any, timeout_s: float, tags: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `frame` as they come; the job has `tags`, for people or to interrupt it.

    A job that lets `timeout_s` pass between two batches is interrupted, as is one whose caller
    stops before the last batch, and no other job of the session. Raises SparkJobTimeout for the
    former, and Spark's errors; see `sluice.etl.spark.error_translation.ErrorTranslator`.
    """
    # DataFrame.toArrow would gather everything, and ask the server for a schema that is known.
    tables = spark.client.to_table_as_iterator(
        frame._plan.to_proto(spark.client), frame._plan.observations
    )
    silent = threading.Event()
    tag = f"job-{secrets.token_hex(6)}"

    def give_up() -> None:
        silent.set()
        spark.interruptTag(tag)

    try:
        while True:
            timer = threading.Timer(timeout_s, give_up)
            timer.daemon = True
            timer.start()
            try:
                with tagged(spark, tag, *tags):
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
    except (GeneratorExit, KeyboardInterrupt):
        with contextlib.suppress(Exception):
            spark.interruptTag(tag)
        raise

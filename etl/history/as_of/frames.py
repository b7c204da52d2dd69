"""Give tables of the past as Spark frames, for queries that Spark answers: rows stay in Spark."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from sluice.etl.history.as_of.aggregations import CollectRows, TypedRows, typed_columns
from sluice.etl.history.as_of.api import TimeTravelQuery
from sluice.etl.history.as_of.by_spark import RESULT_TYPES, ordered_pieces, restored_errors
from sluice.etl.history.as_of.worker import Aggregate
from sluice.etl.settings import Spark
from sluice.etl.spark import session as spark_session
from sluice.etl.spark.error_translation import ErrorTranslator
from sluice.etl.spark.job import tagged
from sluice.etl.spark.job_calls import WorkerFunction
from sluice.etl.spark.remote_workers import wrap_for_workers
from sluice.etl.spark.session_target import BATCH, SessionTarget

__all__ = ["TableFrames", "as_frames", "frames_in"]

_TYPES = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.binary(): "binary",
    pa.string(): "string",
}


class TableFrames:
    """Table frames; `spark`: their session.

    `tables`: by name (``schema.table`` upstream), each computed once, when it is needed first.
    """

    def __init__(self, spark: Any, tables: Mapping[str, Any]) -> None:
        self.spark = spark
        self.tables = tables

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the few rows of a query. Raises AsOfError, SparkError."""
        with restored_errors(), ErrorTranslator().translating():
            return [tuple(row) for row in self.spark.sql(statement).collect()]


@contextlib.contextmanager
def as_frames(past: TimeTravelQuery, server: Spark) -> Iterator[TableFrames]:
    """Open the tables of `past` as frames with the lake's types, in a session on `server`.

    Nothing else uses the session meanwhile. Raises AsOfError, SparkError.
    """
    with past.held(), restored_errors(), ErrorTranslator().translating():
        spark = spark_session.connect(SessionTarget(server, BATCH, past.archive_url))
        kept: list[Any] = []
        tag = f"frames-{secrets.token_hex(6)}"
        try:
            frames = frames_in(spark, past, partial(wrap_for_workers, spark), kept)
            with tagged(spark, tag):
                yield TableFrames(spark, frames)
        finally:
            with contextlib.suppress(Exception):  # the session's end takes them as well
                for payloads in kept:
                    payloads.unpersist()
                spark.interruptTag(tag)
            spark_session.close(spark)


def frames_in(
    spark: Any,
    past: TimeTravelQuery,
    wrap: Callable[[WorkerFunction], WorkerFunction],
    kept: list[Any],
) -> dict[str, Any]:
    """Return the tables of `past` by name as frames of a session, classic or Connect.

    Each is computed once, when it is needed first: `kept` gets the frames that hold the results
    until their `unpersist`. `wrap` prepares a function for the session's workers. What is read must
    be held (`TimeTravelQuery.held`) for as long as the frames are used.
    """
    frames: dict[str, Any] = {}
    for plan in past.asked.plans:
        compute = wrap(Aggregate(replace(plan, tasks=()), CollectRows()))
        payloads = ordered_pieces(spark, plan, wrap).mapInArrow(compute, RESULT_TYPES).persist()
        kept.append(payloads)
        own = {
            name for buckets in plan.families for name in buckets.family.results[past.moments[-1]]
        }
        for name in sorted(own & past.tables.keys()):
            of_table = payloads.where(
                (payloads["name"] == name) & (payloads["moment"] == past.moments[-1])
            )
            found = past.tables[name]
            typed = wrap(TypedRows(found.table, found.left_out))
            frames[name] = of_table.mapInArrow(typed, _ddl(past, name))
    return frames


def _ddl(past: TimeTravelQuery, name: str) -> str:
    found = past.tables[name]
    return ", ".join(
        f"`{column.source.replace('`', '``')}` {_type(column.type)}"
        for column in typed_columns(found.table, found.left_out)
    )


def _type(kind: pa.DataType) -> str:
    return f"decimal({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else _TYPES[kind]

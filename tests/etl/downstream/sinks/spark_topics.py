"""Read topics with Spark Structured Streaming, in a process of its own.

The jars of `spark_jars.txt` are those of Spark's Kafka source. They are of Spark 4.2: those of 4.3
are not on Maven Central.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sluice.etl.changes.messages.message import shown_columns
from sluice.tidb.schema import Table
from tests.etl.downstream.sinks.recorded_topics import Sent
from tests.etl.downstream.sinks.sql_columns import arrival, literal, quoted

_LONG_TIMESTAMP = re.compile(r"TIMESTAMP_LTZ\(\d\)")


class TopicQuery(NamedTuple):
    """A table's topic. `row`: its columns as Spark declares them; `show`: a JSON object of texts,
    by the name of the struct that has the columns.
    """

    table: str
    topic: str
    row: str
    show: str


def topic_query(table: Table, sent: Sent) -> TopicQuery:
    """Return the query of a table's topic in Debezium's JSON."""
    columns = [(column.name, arrival(sent, column)) for column in shown_columns(table)]
    row = ", ".join(f"{quoted(name)}: {_type(found.type)}" for name, found in columns)
    fields = ", ".join(
        f"{literal(name)}, {found.show.format('{0}.' + quoted(name))}" for name, found in columns
    )
    show = f"to_json(named_struct({fields}), map('ignoreNullFields', 'false'))"
    return TopicQuery(table.full_name, sent.topics[table.full_name], f"STRUCT<{row}>", show)


def _type(name: str) -> str:
    return _LONG_TIMESTAMP.sub("TIMESTAMP", name).replace("BYTES", "BINARY")


def rows_of_topics(
    jars: Path, brokers: str, queries: Sequence[TopicQuery]
) -> list[tuple[str, str, int]]:
    """Return each table's rows as a stream of its topic leaves them, with their number."""
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", ",".join(map(str, sorted(jars.glob("*.jar")))))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "700m")
        .getOrCreate()
    )
    try:
        return [
            (query.table, row, count)
            for query in queries
            for row, count in _rows_of(session, brokers, query)
        ]
    finally:
        session.stop()


def _rows_of(session: SparkSession, brokers: str, query: TopicQuery) -> list[tuple[str, int]]:
    envelope = f"op STRING, before {query.row}, after {query.row}"
    messages = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", query.topic)
        .option("startingOffsets", "earliest")
        .load()
        .where("value IS NOT NULL")
    )
    value = f.col("value").cast("string")
    events = messages.select(
        f.from_json(value, envelope, {"mode": "FAILFAST"}).alias("e")
    ).selectExpr("e.*")
    found: list[tuple[str, int]] = []

    def add(batch: DataFrame, number: int) -> None:
        changes = batch.selectExpr(f"{query.show.format('after')} AS row", "1 AS n").where(
            "after IS NOT NULL"
        )
        gone = batch.selectExpr(f"{query.show.format('before')} AS row", "-1 AS n").where(
            "before IS NOT NULL"
        )
        counts = changes.union(gone).groupBy("row").agg(f.sum("n").alias("n")).where("n <> 0")
        found.extend((each["row"], each["n"]) for each in counts.collect())

    with tempfile.TemporaryDirectory() as checkpoints:
        stream = (
            events.writeStream.foreachBatch(add)
            .option("checkpointLocation", checkpoints)
            .trigger(availableNow=True)
            .start()
        )
        stream.awaitTermination()
    return found

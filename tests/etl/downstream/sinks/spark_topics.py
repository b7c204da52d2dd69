"""Read topics with Spark Structured Streaming, in a process of its own.

The jars of `spark_jars.txt` are those of Spark's Kafka source and of its Avro functions. They are
of Spark 4.2: those of 4.3 are not on Maven Central.
"""

from __future__ import annotations

import json
import re
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

from sluice.etl.changes.messages.message import shown_columns
from sluice.tidb.schema import Table
from tests.etl.downstream.sinks.recorded_topics import Sent
from tests.etl.downstream.sinks.sql_columns import MAX_PRECISION, arrival, literal, quoted

_LONG_TIMESTAMP = re.compile(r"TIMESTAMP_LTZ\(\d\)")
_IMAGES = {
    "avro": (
        "CASE WHEN e._tidb_op = 'd' THEN {e} WHEN e._tidb_op = 'u' THEN {e._ticdc_before} END",
        "CASE WHEN e._tidb_op <> 'd' THEN {e} END",
    ),
    "debezium": (
        "CASE WHEN e.before IS NOT NULL THEN {e.before} END",
        "CASE WHEN e.after IS NOT NULL THEN {e.after} END",
    ),
}
"""The rows before and after a change `e`; braces stand for the text of the row in that struct."""


class TopicQuery(NamedTuple):
    """A table's topic. `row`: its columns as Spark declares them; `show`: a JSON object of texts,
    by the name of the struct that has the columns.
    """

    table: str
    topic: str
    row: str
    show: str
    format: str
    registry: str


def topic_query(table: Table, sent: Sent) -> TopicQuery:
    """Return the query of a table's topic."""
    columns = [(column.name, arrival(sent, column)) for column in shown_columns(table)]
    row = ", ".join(f"{quoted(name)}: {_type(found.type)}" for name, found in columns)
    fields = ", ".join(
        f"{literal(name)}, {found.show.format('{0}.' + quoted(name))}" for name, found in columns
    )
    show = f"to_json(named_struct({fields}), map('ignoreNullFields', 'false'))"
    topic = sent.topics[table.full_name]
    options = sent.options
    return TopicQuery(
        table.full_name, topic, f"STRUCT<{row}>", show, options.format, options.registry_url
    )


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


def _messages(session: SparkSession, brokers: str, query: TopicQuery) -> DataFrame:
    return (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", query.topic)
        .option("startingOffsets", "earliest")
        .load()
        .where("value IS NOT NULL")
    )


def _changes(messages: DataFrame, query: TopicQuery) -> DataFrame:
    """Return a batch's changes: the rows `before` and `after` as JSON, or NULL."""
    if query.format == "debezium-json":
        envelope = f"op STRING, before {query.row}, after {query.row}"
        value = f.col("value").cast("string")
        return _images(messages, f.from_json(value, envelope, {"mode": "FAILFAST"}), query)
    found = None
    for (number,) in messages.selectExpr("hex(substring(value, 2, 4))").distinct().collect():
        schema = _schema(query.registry, int(number, 16))
        some = messages.where(f"hex(substring(value, 2, 4)) = '{number}'")
        record = from_avro(f.expr("substring(value, 6)"), schema, {"mode": "FAILFAST"})
        images = _images(some, record, query)
        found = images if found is None else found.union(images)
    return _images(messages, f.lit(None), query) if found is None else found


def _images(messages: DataFrame, record: Any, query: TopicQuery) -> DataFrame:
    before, after = (
        re.sub(r"\{(.*?)\}", lambda struct: query.show.format(struct[1]), text)
        for text in _IMAGES[query.format.partition("-")[0]]
    )
    return messages.select(record.alias("e"), "partition", "offset").selectExpr(
        f"{before} AS before", f"{after} AS after", "partition", "offset"
    )


def _schema(registry: str, number: int) -> str:
    """Return the schema with the id, in which a decimal with too many digits is bytes."""
    with urllib.request.urlopen(f"{registry}/schemas/ids/{number}", timeout=30) as answer:
        schema = json.loads(json.load(answer)["schema"])
    return json.dumps(_with_bytes(schema))


def _with_bytes(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_bytes(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("logicalType") == "decimal" and schema["precision"] > MAX_PRECISION:
        return {"type": "bytes"}
    return {
        name: _with_bytes(each) if name in ("type", "fields", "items") else each
        for name, each in schema.items()
    }


def _rows_of(session: SparkSession, brokers: str, query: TopicQuery) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []

    def add(batch: DataFrame, number: int) -> None:
        changes = _changes(batch, query)
        come = changes.selectExpr("after AS row", "1 AS n").where("after IS NOT NULL")
        gone = changes.selectExpr("before AS row", "-1 AS n").where("before IS NOT NULL")
        counts = come.union(gone).groupBy("row").agg(f.sum("n").alias("n")).where("n <> 0")
        found.extend((each["row"], each["n"]) for each in counts.collect())

    with tempfile.TemporaryDirectory() as checkpoints:
        stream = (
            _messages(session, brokers, query)
            .writeStream.foreachBatch(add)
            .option("checkpointLocation", checkpoints)
            .trigger(availableNow=True)
            .start()
        )
        stream.awaitTermination()
    return found

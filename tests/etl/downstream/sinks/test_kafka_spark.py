"""Spark Structured Streaming reads recordings' topics, which leave the tables that TiDB showed."""

from __future__ import annotations

import multiprocessing
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.messages.message import shown_columns
from tests.etl.changes.messages.recorded_messages import frozen
from tests.etl.downstream.sinks.kafka_topic import needs_broker
from tests.etl.downstream.sinks.recorded_topics import (
    REGISTRY,
    Declared,
    expected_rows,
    landed,
    sent,
)
from tests.etl.downstream.sinks.spark_topics import rows_of_topics, topic_query
from tests.etl.downstream.sinks.sql_columns import arrival, read_row
from tests.kafka_broker import JARS
from tests.maven_jars import NotAvailableError, fetch_jars

pytestmark = [pytest.mark.slow, needs_broker]

LIST = Path(__file__).parents[3] / "spark_jars.txt"
_SOME = {
    "types": {"types.ints", "types.decs", "types.strs", "types.times", "types.nopk", "types.pk_un"},
    "shop": {"bank.account", "bank.cart", "bank.ledger", "bank.log_nopk"},
}
"""Each topic is a stream of its own, so these are as many as a minute allows."""


@pytest.fixture(scope="module", name="jars")
def fetched() -> Path:
    try:
        return fetch_jars(LIST, JARS / "spark")
    except NotAvailableError as error:
        pytest.skip(str(error))


@pytest.mark.ci_cases("shop-debezium-json", "types-avro")
@pytest.mark.parametrize(
    ("recording", "format_name"),
    [
        ("types", "debezium-json"),
        ("shop", "debezium-json"),
        ("types", "avro"),
        ("shop", "debezium-avro"),
    ],
)
def test_a_stream_leaves_what_tidb_showed(
    recording: str, format_name: str, jars: Path, tmp_path: Path
) -> None:
    if "avro" in format_name and not REGISTRY:
        pytest.skip("there is no schema registry")
    recorded = landed(recording, tmp_path / "relay")
    found = sent(recorded, format_name, tmp_path)
    reader = Declared(recorded.tables, format_name)
    expected = expected_rows(recorded, reader)
    tables = [recorded.tables[name] for name in sorted(_SOME[recording])]
    queries = [topic_query(table, found) for table in tables]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
        counted = own.submit(rows_of_topics, jars, found.options.brokers, queries).result()
    columns = {
        table.full_name: {c.name: arrival(found, c) for c in shown_columns(table)}
        for table in tables
    }
    rows: dict[str, Counter[Any]] = defaultdict(Counter)
    for name, text, count in counted:
        rows[name][frozen(read_row(text, columns[name]))] += count
    for name in _SOME[recording]:
        assert rows[name] == expected[name], name

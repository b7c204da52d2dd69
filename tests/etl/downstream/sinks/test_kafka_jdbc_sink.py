"""Debezium's JDBC sink writes recordings' topics into a MariaDB: it has then what TiDB showed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sluice.tidb.schema import Column, Table
from tests.etl.changes.messages.recorded_messages import SNAPSHOTS, elements_of, frozen, shown
from tests.etl.downstream.sinks.kafka_topic import needs_broker, read_topics
from tests.etl.downstream.sinks.recorded_topics import (
    Declared,
    expected_rows,
    landed,
    new_topics,
    sent,
)
from tests.etl.downstream.sinks.told_topics import apply, settings_to
from tests.etl.downstream.sinks.truncated_tables import BEHIND, ITEMS, ORDERS, emptied_tables
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS
from tests.kafka_connect import running_connector
from tests.maven_jars import NotAvailableError

pytestmark = [pytest.mark.slow, needs_broker]

_KEYLESS = {"bank.log_nopk", "types.nopk", "types.pl", "types.uq_null"}
"""Nothing tells their rows apart: the sink needs a key."""
_REFUSED = {
    "types.gen": "it writes generated columns, which MariaDB refuses",
    "types.gpk": "it writes generated columns, which MariaDB refuses",
    "types.times": "it has no form for a TIME below 0 or from 24 hours",
    "types.we`ird 名": "it refuses names with characters beyond ASCII",
}
_BYTE_BITS = 8
_PARTITIONS = re.compile(r"\nPARTITION BY .*", re.DOTALL)
_EXPRESSIONS = re.compile(r",\n  KEY `\w+` \(\(.*\)\)(?=,?\n)")
_UNIQUE_KEYS = re.compile(r",\n  UNIQUE KEY [^\n]*?(?=,?\n)")
_IN_PLACE = {
    "`f` float": "`f` double",  # the largest FLOAT, in digits, is out of MariaDB's range
    "bit(17)": "varbinary(3)",  # Debezium 3.5 writes Bits in the order of Debezium's messages
    "bit(64)": "varbinary(8)",
}
_PROPERTIES = {
    "name": "jdbc",
    "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
    "tasks.max": "1",
    "insert.mode": "upsert",
    "delete.enabled": "true",
    "truncate.enabled": "true",
    "primary.key.mode": "record_key",
    "schema.evolution": "none",
    "quote.identifiers": "true",
    "collection.name.format": "${source.table}",
    "consumer.override.isolation.level": "read_committed",
    "connection.username": "root",
    "connection.password": "",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDBServer]:
    found = MariaDBServer(tmp_path_factory.mktemp("mariadb"), "--default-time-zone=+00:00")
    found.start()
    yield found
    found.kill()


def statements_of(recording: str) -> dict[str, str]:
    """Return the CREATE TABLE of each table in the recording's snapshot, by full name."""
    folder = RECORDINGS / recording / "snapshots" / SNAPSHOTS[recording]
    parts = (folder / "schema.sql").read_text(encoding="utf-8").split("\n-- ")[1:]
    return dict(part.split("\n", 1) for part in parts)


def created(connection: pymysql.connections.Connection, database: str, statement: str) -> None:
    """Create a table as TiDB has it, without partitions, indexes on expressions, and unique keys
    beside a primary key: a value that goes from row to row may come before the other row's change.
    """
    for here, there in _IN_PLACE.items():
        statement = statement.replace(here, there)
    if "PRIMARY KEY" in statement:
        statement = _UNIQUE_KEYS.sub("", statement)
    statement = _EXPRESSIONS.sub("", _PARTITIONS.sub("", statement.rstrip().rstrip(";")))
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {database}")
        connection.select_db(database)
        cursor.execute(statement)


def rows_of(connection: pymysql.connections.Connection, table: Table, reader: Declared) -> Any:
    """Return a table's rows by their meaning."""
    columns = [column for column in table.columns if column.name in reader.kinds[table.full_name]]
    names = ", ".join(f"`{column.name}`" for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM `{table.schema_name}`.`{table.name}`")
        return Counter(
            frozen(
                {
                    c.name: shown(as_recorded(value, c), c.kind, elements_of(c))
                    for c, value in zip(columns, row, strict=True)
                }
            )
            for row in cursor
        )


def as_recorded(value: Any, column: Column) -> Any:
    """Return a value as snapshots have it."""
    if not isinstance(value, bytes):
        return value
    is_reversed = column.kind == "bit" and column.flen > _BYTE_BITS
    return {"hex": (value[::-1] if is_reversed else value).hex()}


def properties_of(
    server: MariaDBServer, database: str, topics: Mapping[str, str]
) -> dict[str, str]:
    url = f"jdbc:mariadb://127.0.0.1:{server.port}/{database}"
    return {**_PROPERTIES, "topics": ",".join(topics.values()), "connection.url": url}


@pytest.mark.ci_cases("types")
@pytest.mark.parametrize("recording", ["types", "shop"])
def test_the_sink_leaves_what_tidb_showed(
    recording: str, server: MariaDBServer, tmp_path: Path
) -> None:
    recorded = landed(recording, tmp_path / "relay")
    found = sent(recorded, "debezium-json", tmp_path, debezium_schema=True)
    expected = expected_rows(recorded, reader := Declared(recorded.tables, "debezium-json"))
    left_out = _KEYLESS | _REFUSED.keys()
    topics = {name: topic for name, topic in found.topics.items() if name not in left_out}
    connection = server.connect(conv={})
    for name, statement in statements_of(recording).items():
        if name in topics:
            created(connection, recorded.tables[name].schema_name, statement)
    ends = {place: end for place, end in found.ends.items() if place[0] in topics.values()}
    (database,) = {recorded.tables[name].schema_name for name in topics}
    try:
        with running_connector(
            found.options.brokers, properties_of(server, database, topics) | {"name": recording}
        ) as connector:
            connector.wait_for(ends)
    except NotAvailableError as error:
        pytest.skip(str(error))
    assert topics
    for name in topics:
        rows = rows_of(connection, recorded.tables[name], reader)
        assert rows == expected.get(name, Counter()), name
    connection.close()


@pytest.mark.beyond_ci
def test_the_sink_empties_a_table_at_op_t_between_its_rows(
    server: MariaDBServer, tmp_path: Path
) -> None:
    story = emptied_tables(tmp_path)
    options = new_topics(
        "debezium-json",
        tmp_path,
        debezium_schema=True,
        dispatch="table",
        truncate_messages="with-rows",
    )
    apply(settings_to(story.url, options))
    prefix = options.topic.partition("{")[0]
    topics = {table.name: f"{prefix}d.{table.name}" for table in (ORDERS, ITEMS)}
    ends = {
        place: (messages[-1].offset() or 0) + 1
        for place, messages in read_topics(options.brokers, *topics.values()).items()
        if messages
    }
    assert len(ends) == len(topics)
    connection = server.connect()
    for name in topics:
        created(connection, "d", f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)")
    try:
        with running_connector(
            options.brokers, properties_of(server, "d", topics) | {"name": "truncations"}
        ) as connector:
            connector.wait_for(ends)
    except NotAvailableError as error:
        pytest.skip(str(error))
    with connection.cursor() as cursor:
        for name in topics:
            cursor.execute(f"SELECT id, v FROM d.{name}")
            assert Counter(cursor.fetchall()) == Counter((row["id"], row["v"]) for row in BEHIND)
    connection.close()

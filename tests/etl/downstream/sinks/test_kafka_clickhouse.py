"""ClickHouse reads recordings' messages into ReplacingMergeTrees, which have what TiDB showed.

chDB has no Kafka engine, so the test hands it each partition's messages as the engine would: one
after another, without the tombstones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sluice.etl.changes.messages.message import handle_key, shown_columns
from sluice.tidb import column_types as types
from sluice.tidb.schema import Column, Table
from tests.clickhouse import run_statements
from tests.etl.changes.messages.recorded_messages import frozen, meaning
from tests.etl.downstream.sinks.kafka_topic import needs_broker, read_topics
from tests.etl.downstream.sinks.recorded_topics import (
    REGISTRY,
    Declared,
    Sent,
    expected_rows,
    landed,
    sent,
)
from tests.maven_jars import NotAvailableError

pytestmark = [
    pytest.mark.slow,
    needs_broker,
    pytest.mark.skipif(not REGISTRY, reason="there is no schema registry"),
]

_NO_NAME = re.compile(r"[^A-Za-z0-9_]")
_FIELDS = "_tidb_op String, _tidb_commit_ts Int64"
_FROM_AVRO = "toUInt64(_tidb_commit_ts) AS version, _tidb_op = 'd' AS deleted"


class Arrival(NamedTuple):
    """A column: its type in ClickHouse, what its text means, and what makes the text."""

    type: str
    read: Callable[[str], Any]
    show: str = "toString"


def arrival(column: Column) -> Arrival:
    """Return how a column arrives in Avro."""

    def of_bytes(text: str) -> Any:
        return meaning(bytes.fromhex(text), column.kind)

    def of_text(text: str) -> Any:
        return meaning(text, column.kind)

    match column.kind:
        case "int" if column.unsigned and column.tp == types.BIGINT:
            return Arrival("String", of_text)
        case "int" | "year":
            is_long = column.tp == types.BIGINT or (column.unsigned and column.tp == types.INT)
            return Arrival("Int64" if is_long else "Int32", of_text)
        case "float":
            return Arrival("Float32", of_text)
        case "double":
            return Arrival("Float64", of_text)
        case "decimal":
            return Arrival(f"Decimal({column.flen}, {max(column.decimal, 0)})", of_text)
        case "bit":
            return Arrival("String", lambda text: int.from_bytes(bytes.fromhex(text), "big"), "hex")
        case _:
            return Arrival("String", of_bytes, "hex")


def statements_of(table: Table, number: int, sent: Sent, files: list[Path]) -> list[str]:
    """Return the statements that fill a table from files of messages, and show it at last."""
    columns = [
        (_quoted(column.name), column.not_null, arrival(column)) for column in shown_columns(table)
    ]
    declared = ", ".join(
        f"{name} {found.type if is_given else f'Nullable({found.type})'}"
        for name, is_given, found in columns
    )
    names = ", ".join(name for name, _, _ in columns)
    key = ", ".join(map(_quoted, handle_key(table)))
    shown = ", ".join(
        f"{found.show}({name}) AS shown_{n}" for n, (name, _, found) in enumerate(columns)
    )
    settings = f"format_avro_schema_registry_url = '{sent.options.registry_url}', max_threads = 1"
    return [
        f"CREATE TABLE t{number} ({declared}, version UInt64, deleted UInt8)"
        f" ENGINE = ReplacingMergeTree(version, deleted) ORDER BY ({key})",
        *(
            f"INSERT INTO t{number} SELECT {names}, {_FROM_AVRO}"
            f" FROM file('{file}', 'AvroConfluent', '{declared}, {_FIELDS}') SETTINGS {settings}"
            for file in files
        ),
        f"SELECT {shown} FROM t{number} FINAL",
    ]


@pytest.mark.ci_cases("types")
@pytest.mark.parametrize("recording", ["types", "shop"])
def test_the_tables_have_what_tidb_showed(recording: str, tmp_path: Path) -> None:
    recorded = landed(recording, tmp_path / "relay")
    found = sent(recorded, "avro", tmp_path)
    expected = expected_rows(recorded, Declared(recorded.tables, "avro"))
    files: dict[str, list[Path]] = {name: [] for name in found.topics}
    for (topic, partition), messages in read_topics(
        found.options.brokers, *found.topics.values()
    ).items():
        name = next(name for name, each in found.topics.items() if each == topic)
        files[name].append(tmp_path / f"{topic}-{partition}")
        files[name][-1].write_bytes(b"".join(message.value() or b"" for message in messages))
    tables = [recorded.tables[name] for name in files if handle_key(recorded.tables[name])]
    parts = [statements_of(t, n, found, files[t.full_name]) for n, t in enumerate(tables)]
    try:
        results = run_statements([statement for part in parts for statement in part])
    except NotAvailableError as error:
        pytest.skip(str(error))
    ends, end = [], 0
    for part in parts:
        end += len(part)
        ends.append(end - 1)
    assert tables
    for table, last in zip(tables, ends, strict=True):
        columns = shown_columns(table)
        rows = Counter(frozen(_row(columns, row)) for row in results[last])
        assert rows == expected.get(table.full_name, Counter()), table.full_name


def _quoted(name: str) -> str:
    """Return a column's name as Avro has it."""
    return f"`{_NO_NAME.sub('_', name)}`"


def _row(columns: list[Column], row: dict[str, Any]) -> dict[str, Any]:
    return {
        column.name: None if value is None else arrival(column).read(value)
        for column, value in zip(columns, row.values(), strict=True)
    }

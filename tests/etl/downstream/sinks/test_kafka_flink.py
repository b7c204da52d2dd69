"""Flink SQL reads topics of recordings; its changelog leaves the tables that TiDB showed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.etl.changes.messages.message import shown_columns
from tests.etl.changes.messages.recorded_messages import Change, rebuilt
from tests.etl.downstream.sinks.kafka_topic import needs_broker
from tests.etl.downstream.sinks.recorded_topics import (
    REGISTRY,
    Declared,
    Recorded,
    expected_rows,
    landed,
    sent,
)
from tests.etl.downstream.sinks.sql_columns import (
    arrival,
    create_table,
    read_row,
    select_rows,
)
from tests.flink import Flink, running_flink
from tests.maven_jars import NotAvailableError

pytestmark = [pytest.mark.slow, needs_broker]

_UNNAMED = {"types.we`ird 名"}
"""Its columns have names that Avro doesn't allow, and Flink looks them up by their own."""


@pytest.fixture(scope="module")
def flink() -> Iterator[Flink]:
    try:
        with running_flink() as found:
            yield found
    except NotAvailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=["types", "shop"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return landed(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.ci_cases(
    "types-canal", "shop-debezium-json-more1", "types-debezium-json-more2", "types-debezium-avro"
)
@pytest.mark.parametrize(
    ("format_name", "more"),
    [
        ("canal-json", {}),
        ("debezium-json", {}),
        ("debezium-json", {"debezium_schema": True}),
        ("debezium-avro", {}),
    ],
)
def test_flinks_changelog_leaves_what_tidb_showed(
    format_name: str, more: dict[str, bool], recorded: Recorded, flink: Flink, tmp_path: Path
) -> None:
    if format_name == "debezium-avro" and not REGISTRY:
        pytest.skip("there is no schema registry")
    found = sent(recorded, format_name, tmp_path, **more)
    expected = expected_rows(recorded, Declared(recorded.tables, format_name))
    left_out = _UNNAMED if format_name == "debezium-avro" else set()
    tables = [recorded.tables[name] for name in sorted(found.topics.keys() - left_out)]
    queries = []
    for number, table in enumerate(tables):
        name = f"{found.options.topic.partition('.')[0]}_{number}"
        flink.execute(create_table(name, table, found))
        queries.append(select_rows(name, table, found))
    columns = {
        table.full_name: {c.name: arrival(found, c) for c in shown_columns(table)}
        for table in tables
    }
    changes = []
    for kind, (name, text) in flink.changelog(" UNION ALL ".join(queries)):
        row = read_row(text, columns[name])
        old, new = (row, None) if kind in ("-U", "-D") else (None, row)
        changes.append(Change("", name, old, new))
    rows = rebuilt(changes)
    assert rows.keys() == expected.keys() - left_out
    for name in rows:
        assert rows[name] == expected[name], name

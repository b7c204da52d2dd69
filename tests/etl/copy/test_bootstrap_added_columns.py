"""A dump into tables with columns that rules add: each is made with its table, and computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.settings.rules import parse_filter
from tests.etl.copy.copying import RECORDING, bootstrap, settings_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.tidb_stand_in import TiDBStandIn

RULES = [
    {"tables": ["bank.*"], "add": {"source": "'eu'"}},
    {"tables": ["bank.account"], "add": {"label": "concat(email, ' ', balance)"}},
    {"tables": ["bank.child"], "add": {"next": "aid + 1"}},  # of a foreign key's column
    {"tables": ["bank.parts"], "leave-out": ["absent"], "add": {"twice": "concat(id, '-', id)"}},
]


@pytest.fixture(params=["mariadb", "tidb"])
def server(request: pytest.FixtureRequest, own_mariadb: MariaDBServer) -> Iterator[Any]:
    if request.param == "mariadb":
        yield own_mariadb
        return
    stand_in = TiDBStandIn(own_mariadb)
    yield stand_in
    stand_in.close()


def test_a_dump_arrives_in_tables_with_their_added_columns(
    server: Any, own_mariadb: MariaDBServer, tmp_path: Path
) -> None:
    filters = parse_filter({"replicate-do-db": ["bank"], "columns": RULES})[0]
    summary = bootstrap(settings_of(server, tmp_path, filters), RECORDING / "dump-sql")
    assert summary.rows_there > 1_000

    def asked(statement: str) -> tuple[tuple[Any, ...], ...]:
        with own_mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return tuple(cursor.fetchall())

    added = asked(
        "SELECT TABLE_NAME, COLUMN_NAME, EXTRA FROM information_schema.COLUMNS WHERE TABLE_SCHEMA"
        " = 'bank' AND GENERATION_EXPRESSION IS NOT NULL ORDER BY TABLE_NAME, ORDINAL_POSITION"
    )
    tables = asked(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'bank' AND"
        " TABLE_TYPE = 'BASE TABLE'"
    )
    assert {table for table, column, _ in added if column == "source"} == {
        name for (name,) in tables
    }
    assert {extra for *_, extra in added} == {"STORED GENERATED"}
    assert [column for table, column, _ in added if table == "account"] == ["source", "label"]
    for table, column, expression in (
        ("account", "label", "CONCAT(email, ' ', balance)"),
        ("child", "next", "aid + 1"),
        ("parts", "twice", "CONCAT(id, '-', id)"),
        ("ledger", "source", "'eu'"),
    ):
        rows, alike = asked(f"SELECT COUNT(*), SUM({column} <=> {expression}) FROM bank.{table}")[0]
        assert rows and rows == alike

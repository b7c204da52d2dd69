"""A table of which row rules select some rows: copied, compared and never taken for a whole one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.rules import Routes
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.plan import make_copy_plan
from sluice.etl.copy.tidb_sql import TidbSql
from sluice.etl.history.snapshots.preflight import downstream_table_of
from sluice.etl.settings.rules import parse_filter
from sluice.etl.verify import range_compare, table_compare
from sluice.etl.verify.live_rows import open_live_rows
from sluice.tidb.schema import Schema
from tests.etl.copy.copying import CLUSTER
from tests.etl.copy.given_rows import NOW, serving_all
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table
from tests.etl.verify.replicas import Replica

ORDERS = table(21, "orders", "id int", "region varchar(9)", "n int", primary="id")
ALONE = table(24, "alone", "id int", "v varchar(40)", primary="id")
WHERE = "region = 'eu' AND n >= 10"


def rows() -> list[list[Any]]:
    return [[n, (b"eu", b"us", None)[n % 3], n] for n in range(300)]


@contextlib.contextmanager
def replica(server: MariaDBServer, folder: Path, where: str = WHERE) -> Iterator[Replica]:
    """The tables, copied by the rule."""
    schema = Schema(ORDERS.schema_id, "d", "utf8mb4", "utf8mb4_bin")
    held = {ORDERS.id: rows(), ALONE.id: [[n, b"v"] for n in range(9)]}
    filters = parse_filter({"rows": [{"tables": ["d.orders"], "where": where}]})[0]
    known = SourceSchema(NOW - 1, 5, (schema,), (ORDERS, ALONE))
    with serving_all([ORDERS, ALONE], held, region_rows=50) as address:
        made = Replica(address, known, server, folder, filters)
        made.copy()
        yield made


def test_the_selected_rows_are_copied_and_compared_and_others_are_found(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_compare, "RANGE_BYTES", 4096)
    monkeypatch.setattr(range_compare, "ROWS_PER_READ", 10)
    selected = {n for n, region, _ in rows() if region == b"eu" and n >= 10}
    with replica(mariadb, tmp_path) as made:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM d.orders")
            assert {number for (number,) in cursor.fetchall()} == selected
            found = made.compare()
            assert {name: (one.found.rows, one.found.apart) for name, one in found.items()} == {
                "d.orders": (len(selected), None),
                "d.alone": (9, None),
            }
            cursor.execute("INSERT INTO d.orders VALUES (1, 'us', 1)")
            cursor.execute("DELETE FROM d.orders WHERE id = 12")
        apart = made.compare()["d.orders"].found.apart
        assert apart is not None
        assert (apart.come["id"].to_pylist(), apart.gone["id"].to_pylist()) == ([12], [1])


@pytest.mark.slow
def test_rows_that_are_looked_at_all_the_time_are_the_selected_ones(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica(mariadb, tmp_path) as made:

        class Upstream:
            address = made.address

            def definitions(self, ts: int) -> SourceSchema:
                return made.known

        with open_live_rows(made.settings, CLUSTER, Upstream(), 1.0) as live:
            found = live.compare(ORDERS, "id < 30 OR id > 280")
        assert (found.rows, found.apart.count) == (12, 0)


def test_what_cannot_take_selected_rows_refuses_them_by_the_rules_name(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica(mariadb, tmp_path) as made:
        why = downstream_table_of(made.settings, ORDERS)
        assert isinstance(why, str) and "[[filter.rows]] 1" in why and WHERE in why
        assert not isinstance(downstream_table_of(made.settings, ORDERS, selected_too=True), str)
        broken = parse_filter({"rows": [{"tables": ["d.orders"], "where": "no = 1"}]})[0]
        settings = replace(made.settings, filters=broken)
        refused = downstream_table_of(settings, ORDERS, selected_too=True)
        assert isinstance(refused, str) and "has no column no" in refused
        plan = make_copy_plan(TidbSql(made.address, NOW - 1), made.known, broken, Routes())
        assert any("has no column no" in problem for problem in plan.problems)

"""A table without the columns that a rule leaves out: copied, compared, never taken for whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.etl.changes.rules import Routes
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.plan import make_copy_plan
from sluice.etl.copy.tidb_sql import TidbSql
from sluice.etl.history.snapshots.preflight import downstream_table_of
from sluice.etl.settings.rules import parse_filter
from sluice.etl.verify.live_rows import open_live_rows
from sluice.tidb.schema import Schema
from tests.etl.copy.copying import CLUSTER
from tests.etl.copy.given_rows import NOW, serving_all
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table
from tests.etl.verify.replicas import Replica

PEOPLE = table(21, "people", "id int", "email varchar(40)", "n int", primary="id")
RULE = {"tables": ["d.people"], "leave-out": ["email"]}


@contextlib.contextmanager
def replica(server: MariaDBServer, folder: Path) -> Iterator[Replica]:
    schema = Schema(PEOPLE.schema_id, "d", "utf8mb4", "utf8mb4_bin")
    held = {PEOPLE.id: [[n, b"a@example.org", n % 7] for n in range(300)]}
    filters = parse_filter({"columns": [RULE]})[0]
    known = SourceSchema(NOW - 1, 5, (schema,), (PEOPLE,))
    with serving_all([PEOPLE], held, region_rows=50) as address:
        made = Replica(address, known, server, folder, filters)
        made.copy()
        yield made


def test_the_columns_that_are_left_are_copied_and_compared(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica(mariadb, tmp_path) as made:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT * FROM d.people ORDER BY id")
            assert list(cursor.fetchall()) == [(n, n % 7) for n in range(300)]
            found = made.compare()["d.people"].found
            assert (found.rows, found.apart) == (300, None)
            cursor.execute("UPDATE d.people SET n = 9 WHERE id = 12")
        apart = made.compare()["d.people"].found.apart
        assert apart is not None and apart.count == 1


@pytest.mark.slow
def test_rows_that_are_looked_at_all_the_time_are_without_these_columns(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica(mariadb, tmp_path) as made:

        class Upstream:
            address = made.address

            def definitions(self, ts: int) -> SourceSchema:
                return made.known

        with open_live_rows(made.settings, CLUSTER, Upstream(), 1.0) as live:
            found = live.compare(live.tables[PEOPLE.id], "id < 30")
        assert (found.rows, found.apart.count) == (30, 0)


def test_what_cannot_take_a_part_of_the_columns_refuses_by_the_rules_name(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica(mariadb, tmp_path) as made:
        why = downstream_table_of(made.settings, PEOPLE)
        assert isinstance(why, str) and "[[filter.columns]] 1 (leave-out email)" in why
        keys = parse_filter({"columns": [RULE | {"leave-out": ["id"]}]})[0]
        plan = make_copy_plan(TidbSql(made.address, NOW - 1), made.known, keys, Routes())
        assert any("the primary key needs" in problem for problem in plan.problems)

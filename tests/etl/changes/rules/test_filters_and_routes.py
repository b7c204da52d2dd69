"""Filters and routes on the way from a relay log into a real server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.apply import ApplySummary, run_apply
from sluice.etl.changes.steps import ChangeError
from sluice.etl.downstream.sinks import ApplyError
from sluice.etl.settings import Settings, parse_settings
from sluice.relay import RelayLog
from sluice.tidb.schema import Schema, Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.snapshots import differences
from tests.etl.story import Story, column, table


def settings_for(server: MariaDBServer, url: str, rules: Mapping[str, Any]) -> Settings:
    document = {
        "upstream": {"pd-urls": "unused"},
        "relay": {"url": url},
        "downstream": {"host": "127.0.0.1", "port": server.port},
        "apply": {"max-rows": 100_000},
    }
    return parse_settings(document | dict(rules))


def apply(
    server: MariaDBServer, url: str, rules: Mapping[str, Any], until: int | None = None
) -> ApplySummary:
    last = RelayLog.open(url).last()
    assert last is not None
    settings = settings_for(server, url, rules)
    summary = run_apply(
        settings, until_ts=until or last.hi, run_seconds=240, prepare=local_preparer(settings)
    )
    assert summary.checkpoint == (until or last.hi)
    return summary


def replayed(
    server: MariaDBServer, folder: Path, name: str, label: str, rules: Mapping[str, Any]
) -> ApplySummary:
    ts = next(
        s["ts"]
        for s in json.loads((RECORDINGS / name / "snapshots.json").read_text())
        if s["label"] == label
    )
    url = f"file://{folder}/relay"
    land(RECORDINGS / name, url, 400, through=ts)
    return apply(server, url, rules)


class Told(Story):
    """A story whose downstream is reached through rules."""

    def __init__(self, server: MariaDBServer, folder: Path, **rules: Any) -> None:
        self.rules = {
            ("filter" if key == "filters" else key): value for key, value in rules.items()
        }
        super().__init__(server, folder)

    def apply(self) -> ApplySummary:
        return apply(self.server, self._url, self.rules)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        connection = self.server.connect()
        with connection.cursor() as cursor:
            cursor.execute(statement)
            found = list(cursor.fetchall())
        connection.close()
        return found

    def database(self, number: int, name: str) -> None:
        self.statement(
            1,
            f"CREATE DATABASE `{name}`",
            schemas={number: Schema(number, name, "utf8mb4", "utf8mb4_bin")},
            schema=name,
        )


def in_schema(made: Table, number: int, schema: str) -> Table:
    from dataclasses import replace

    return replace(made, schema_id=number, schema_name=schema)


def tables(story: Told, schema: str) -> list[str]:
    return sorted(row[0] for row in story.ask(f"SHOW TABLES FROM `{schema}`"))


def databases(server: MariaDBServer) -> set[str]:
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        found = {row[0] for row in cursor.fetchall()}
    connection.close()
    return found


def test_only_the_wanted_tables_of_a_recording_arrive_with_their_database(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    listed = next(
        s
        for s in json.loads((RECORDINGS / "shop" / "snapshots.json").read_text())
        if s["label"] == "b_mid"
    )["tables"]
    wanted, *others = listed
    schema, name = wanted.split(".")
    rules = {
        "filter": {"replicate-do-table": [{"db-name": schema.upper(), "tbl-name": name[:-1] + "?"}]}
    }
    summary = replayed(mariadb, tmp_path, "shop", "b_mid", rules)
    assert summary.changes > 100
    found = differences(RECORDINGS / "shop", "b_mid", mariadb)
    assert {line.partition(":")[0] for line in found} == set(others)
    assert all("columns []" in line for line in found)


def test_a_recording_of_which_nothing_is_wanted_moves_the_checkpoint_and_makes_nothing(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    before = databases(mariadb)
    summary = replayed(
        mariadb, tmp_path, "shop", "b_mid", {"filter": {"replicate-do-db": ["~^nothing"]}}
    )
    assert (summary.changes, summary.rows, summary.ddls) == (0, 0, 0)
    assert summary.transactions > 1000
    assert databases(mariadb) - before == {"tidb_binlog"}


@pytest.mark.quick_cases("c_renamed")
@pytest.mark.parametrize("label", ["c_renamed", "f_end"])
def test_every_kind_of_schema_change_arrives_under_the_names_of_routes(
    mariadb: MariaDBServer, tmp_path: Path, label: str
) -> None:
    rules = {
        "route": [
            {"schema-pattern": "shop", "target-schema": "Store x"},
            {
                "schema-pattern": "other",
                "table-pattern": "g2",
                "target-schema": "third",
                "target-table": "g`3",
            },
        ]
    }
    summary = replayed(mariadb, tmp_path, "ddl", label, rules)
    assert summary.ddls > 15
    assert "shop" not in databases(mariadb)
    connection = mariadb.connect()
    with connection.cursor() as cursor:
        # Back under the old names, so that the snapshot can be compared.
        cursor.execute("SET foreign_key_checks = 0")
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE DATABASE IF NOT EXISTS other")
        cursor.execute(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA IN"
            " ('Store x', 'third') AND TABLE_TYPE = 'BASE TABLE'"
        )
        for schema, name in cursor.fetchall():
            to = f"shop.`{name}`" if schema == "Store x" else "other.g2"
            quoted = name.replace("`", "``")
            cursor.execute(f"RENAME TABLE `{schema}`.`{quoted}` TO {to}")
    connection.close()
    assert differences(RECORDINGS / "ddl", label, mariadb) == []


def test_a_table_that_leaves_what_is_replicated_stops_with_the_rule_and_the_hint(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Told(
        mariadb, tmp_path, filters={"ignore-table": [{"db-name": "d", "tbl-name": "old_*"}]}
    )
    t = story.create(
        table(10, "t", "id int", primary="id"), "CREATE TABLE `t` (`id` INT PRIMARY KEY)"
    )
    story.insert(t, {"id": 1})
    story.statement(14, "RENAME TABLE `t` TO `old_t`", table(10, "old_t", "id int", primary="id"))
    with pytest.raises(ChangeError) as caught:
        story.apply()
    for part in (
        "takes d.t out",
        "ignore-table[1]",
        "old_*",
        "ignore-txn-commit-ts",
        f"sluice ddl skip {story._ts}",
    ):
        assert part in str(caught.value)
    assert story.rows("t") == [(1,)], "what came before is there"
    story.rules["filter"]["ignore-txn-commit-ts"] = [story._ts]
    story.insert(table(10, "old_t", "id int", primary="id"), {"id": 2})
    story.apply()
    assert story.rows("t") == [(1,)]


def test_a_table_that_comes_into_what_is_replicated_stops_as_its_rows_are_not_there(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Told(
        mariadb, tmp_path, filters={"ignore-table": [{"db-name": "d", "tbl-name": "old_*"}]}
    )
    old = story.create(
        table(10, "old_t", "id int", primary="id"), "CREATE TABLE `old_t` (`id` INT PRIMARY KEY)"
    )
    story.insert(old, {"id": 1})
    story.statement(14, "RENAME TABLE `old_t` TO `t`", table(10, "t", "id int", primary="id"))
    with pytest.raises(ChangeError, match="its rows are not downstream"):
        story.apply()


def test_dropping_a_database_drops_what_was_replicated_and_nothing_else(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Told(
        mariadb, tmp_path, filters={"ignore-table": [{"db-name": "d", "tbl-name": "mine"}]}
    )
    t = story.create(
        table(10, "t", "id int", primary="id"), "CREATE TABLE `t` (`id` INT PRIMARY KEY)"
    )
    story.create(
        table(11, "mine", "id int", primary="id"), "CREATE TABLE `mine` (`id` INT PRIMARY KEY)"
    )
    story.insert(t, {"id": 1})
    story.apply()
    story.ask("CREATE TABLE d.mine (x int)")
    story.statement(2, "DROP DATABASE `d`", 10, 11, schemas={1: None})
    summary = story.apply()
    assert tables(story, "d") == ["mine"]
    assert any("stays" in warning for warning in summary.warnings)


MODES = pytest.mark.parametrize(
    "mode",
    [{"mode": "atomic"}, {"mode": "parallel", "worker-count": 3}],
    ids=["atomic", "parallel"],
)


@MODES
def test_changes_and_statements_that_the_event_filter_names_stay_away(
    mariadb: MariaDBServer, tmp_path: Path, mode: dict[str, Any]
) -> None:
    rules = {
        "binlog-filter-rule": {
            "keep": {
                "ignore-event": ["delete", "Truncate Table"],
                "ignore-sql": ["add column `secret`"],
            }
        },
        "table-migrate-rule": [
            {"source": {"schema": "d", "table": "log_*"}, "binlog-filter-rule": ["keep"]}
        ],
    }
    story = Told(mariadb, tmp_path, filters=rules, apply=mode)
    log_1 = story.create(
        table(10, "log_1", "id int", "v int", primary="id"),
        "CREATE TABLE `log_1` (`id` INT PRIMARY KEY, `v` INT)",
    )
    other = story.create(
        table(11, "other", "id int", primary="id"), "CREATE TABLE `other` (`id` INT PRIMARY KEY)"
    )
    heap = story.create(table(12, "log_heap", "v int"), "CREATE TABLE `log_heap` (`v` INT)")
    row, twin, gone = {"id": 1, "v": 1}, {"id": 2, "v": 2}, {"v": 5}
    story.insert(log_1, row, twin)
    story.insert(other, {"id": 1})
    story.insert(heap, gone, {"v": 6})
    story.delete(log_1, row, twin)
    story.delete(other, {"id": 1})
    story.delete(heap, gone)
    story.insert(log_1, {"id": 1, "v": 3})
    story.apply()
    assert story.rows("log_1") == [(1, 3), (2, 2)]
    assert story.rows("other") == []
    assert story.rows("log_heap") == [(5,), (6,)]
    story.delete(log_1, {"id": 1, "v": 3})
    story.insert(log_1, {"id": 1, "v": 4})
    story.statement(
        11, "TRUNCATE TABLE `log_1`", 10, table(13, "log_1", "id int", "v int", primary="id")
    )
    story.apply()
    assert story.rows("log_1") == [(1, 4), (2, 2)]


MERGE = [
    {
        "schema-pattern": "shard_*",
        "table-pattern": "orders",
        "target-schema": "shop",
        "target-table": "orders",
    }
]


def sharded(story: Told, *columns: str) -> list[Table]:
    made = []
    for number in (1, 2):
        story.database(20 + number, f"shard_{number}")
        t = in_schema(
            table(30 + number, "orders", *columns, primary="id"), 20 + number, f"shard_{number}"
        )
        story.statement(
            3,
            f"CREATE TABLE `orders` ({columns[0]} primary key, {columns[1]})",
            t,
            schema=f"shard_{number}",
            name="orders",
        )
        made.append(t)
    return made


@MODES
def test_several_tables_become_one_and_no_statement_of_one_takes_rows_of_the_others(
    mariadb: MariaDBServer, tmp_path: Path, mode: dict[str, Any]
) -> None:
    story = Told(mariadb, tmp_path, route=MERGE, apply=mode)
    a, b = sharded(story, "id int", "v int")
    story.insert(a, {"id": 1, "v": 10})
    story.insert(b, {"id": 2, "v": 20})
    story.update(a, {"id": 1, "v": 10}, {"v": 11})
    story.apply()
    assert story.ask("SELECT * FROM shop.orders ORDER BY id") == [(1, 11), (2, 20)]
    wide = []
    for number, t in ((1, a), (2, b)):
        more = in_schema(
            table(
                t.id,
                "orders",
                "id int",
                "v int",
                column(3, "w int", default="7", origin_default="7"),
                primary="id",
            ),
            20 + number,
            t.schema_name,
        )
        story.statement(
            5,
            f"ALTER TABLE `{t.schema_name}`.`orders` ADD COLUMN `w` INT DEFAULT 7",
            more,
            schema=t.schema_name,
        )
        wide.append(more)
    story.insert(wide[1], {"id": 3, "v": 30, "w": 300})
    summary = story.apply()
    assert any("done already" in warning for warning in summary.warnings)
    assert story.ask("SELECT * FROM shop.orders ORDER BY id") == [
        (1, 11, 7),
        (2, 20, 7),
        (3, 30, 300),
    ]
    story.statement(
        11,
        "TRUNCATE TABLE `orders`",
        wide[0].id,
        in_schema(table(40, "orders", "id int", "v int", "w int", primary="id"), 21, "shard_1"),
        schema="shard_1",
    )
    story.statement(4, "DROP TABLE `orders`", wide[1].id, schema="shard_2")
    story.statement(2, "DROP DATABASE `shard_2`", schemas={22: None}, schema="shard_2")
    summary = story.apply()
    assert len([w for w in summary.warnings if "its rows stay" in w]) == 2
    assert story.ask("SELECT COUNT(*) FROM shop.orders") == [(3,)]
    assert "shard_2" not in databases(mariadb)
    assert "shard_1" in databases(mariadb)


@MODES
def test_a_row_that_moves_between_merged_tables_is_no_conflict(
    mariadb: MariaDBServer, tmp_path: Path, mode: dict[str, Any]
) -> None:
    story = Told(mariadb, tmp_path, route=MERGE, apply=mode)
    a, b = sharded(story, "id int", "v int")
    story.insert(a, {"id": 1, "v": 10})
    story.delete(a, {"id": 1, "v": 10})
    story.insert(b, {"id": 1, "v": 11})
    story.apply()
    story.delete(b, {"id": 1, "v": 11})
    story.insert(a, {"id": 1, "v": 12})
    story.apply()
    assert story.ask("SELECT * FROM shop.orders") == [(1, 12)]


@pytest.mark.parametrize("together", [True, False])
def test_the_same_key_from_two_merged_tables_is_an_error_that_names_them(
    mariadb: MariaDBServer, tmp_path: Path, together: bool
) -> None:
    story = Told(mariadb, tmp_path, route=MERGE)
    a, b = sharded(story, "id int", "v int")
    story.insert(a, {"id": 1, "v": 10})
    if not together:
        story.apply()
    story.insert(b, {"id": 1, "v": 11})
    with pytest.raises((ChangeError, ApplyError)) as caught:
        story.apply()
    assert "shard_2.orders" in str(caught.value)
    assert "shop.orders" in str(caught.value)
    if together:
        assert "shard_1.orders" in str(caught.value)
    assert story.ask("SELECT * FROM shop.orders") == ([] if together else [(1, 10)])


def test_a_second_source_with_another_structure_is_an_error_that_says_what_differs(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    from sluice.etl.downstream.ddl import DdlError

    story = Told(mariadb, tmp_path, route=MERGE)
    sharded(story, "id int", "v int")
    story.database(25, "shard_5")
    story.statement(
        3,
        "CREATE TABLE `orders` (`id` INT PRIMARY KEY, `v` VARCHAR(5))",
        in_schema(table(45, "orders", "id int", "v varchar(5)", primary="id"), 25, "shard_5"),
        schema="shard_5",
    )
    with pytest.raises(DdlError) as caught:
        story.apply()
    assert "column v is int" in str(caught.value)
    assert "shard_*" in str(caught.value)


def test_a_table_with_the_name_of_a_target_is_not_mixed_in_unasked(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Told(
        mariadb,
        tmp_path,
        route=[
            {"schema-pattern": "d", "table-pattern": "t", "target-schema": "d", "target-table": "u"}
        ],
    )
    story.create(table(10, "t", "id int", primary="id"), "CREATE TABLE `t` (`id` INT PRIMARY KEY)")
    story.create(table(11, "u", "id int", primary="id"), "CREATE TABLE `u` (`id` INT PRIMARY KEY)")
    with pytest.raises(ChangeError) as caught:
        story.apply()
    assert "d.u keeps its name" in str(caught.value)
    assert "[[route]] 1" in str(caught.value)
    assert tables(story, "d") == ["u"]


def test_a_view_reads_the_tables_where_routes_take_them(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Told(
        mariadb,
        tmp_path,
        route=[
            {"schema-pattern": "d", "target-schema": "x"},
            {
                "schema-pattern": "d",
                "table-pattern": "t",
                "target-schema": "y",
                "target-table": "tt",
            },
        ],
    )
    t = story.create(
        table(10, "t", "id int", primary="id"), "CREATE TABLE `t` (`id` INT PRIMARY KEY)"
    )
    story.statement(
        21,
        "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY INVOKER VIEW `v` (`i`) AS"
        " SELECT `d`.`t`.`id` FROM `d`.`t` WHERE `t`.`id`>1",
        table(
            11,
            "v",
            "i int",
            is_view=True,
            view={"view_select": "SELECT `d`.`t`.`id` AS `id` FROM `d`.`t` WHERE `t`.`id`>1"},
        ),
    )
    story.insert(t, {"id": 1}, {"id": 2})
    assert story.apply().warnings == []
    assert story.ask("SELECT * FROM x.v") == [(2,)]
    story.statement(24, "DROP VIEW `v`", 11)
    story.apply()
    assert tables(story, "x") == []


def test_a_crash_between_making_the_database_a_route_needs_and_the_table_leaves_nothing_out(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.etl.downstream import MySQLSession

    story = Told(
        mariadb,
        tmp_path,
        route=[
            {"schema-pattern": "d", "table-pattern": "t", "target-schema": "x", "target-table": "t"}
        ],
    )
    t = story.create(
        table(10, "t", "id int", primary="id"), "CREATE TABLE `t` (`id` INT PRIMARY KEY)"
    )
    story.insert(t, {"id": 1})
    execute = MySQLSession.execute

    def dying(session: MySQLSession, statement: str | bytes) -> int:
        if "CREATE TABLE `x`" in str(statement):
            raise KeyboardInterrupt
        return execute(session, statement)

    with monkeypatch.context() as patch:
        patch.setattr(MySQLSession, "execute", dying)
        with pytest.raises(KeyboardInterrupt):
            story.apply()
    assert "x" in databases(mariadb)
    story.apply()
    assert story.ask("SELECT * FROM x.t") == [(1,)]


def test_a_table_that_stays_in_a_database_of_which_another_route_takes_the_others_finds_it(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    routes = [
        {
            "schema-pattern": "shop",
            "table-pattern": "orders",
            "target-schema": "shop",
            "target-table": "sold",
        },
        {"schema-pattern": "shop", "target-schema": "store"},
    ]
    story = Told(mariadb, tmp_path, route=routes)
    story.database(7, "shop")
    made = in_schema(table(11, "orders", "id int", primary="id"), 7, "shop")
    story.statement(
        3, "CREATE TABLE `orders` (`id` INT PRIMARY KEY)", made, schema="shop", name="orders"
    )
    story.insert(made, {"id": 1})
    story.apply()
    assert story.ask("SELECT * FROM shop.sold") == [(1,)]


def test_filters_and_routes_travel_to_sparks_workers() -> None:
    from pyspark import cloudpickle

    from sluice.etl.apply import prepare_options

    rules = {
        "filter": {
            "ignore-table": [{"db-name": "a", "tbl-name": "~b"}],
            "ignore-txn-commit-ts": [7],
        },
        "route": MERGE,
    }
    options = prepare_options(
        settings_for(type("Server", (), {"port": 3306})(), "file:///r", rules)
    )  # type: ignore[arg-type]
    assert cloudpickle.loads(cloudpickle.dumps(options)) == options
    assert options.ignored_ts == {7}
    assert options.routes.rules


@MODES
def test_a_key_comes_again_after_a_truncate_that_was_left_out(
    mariadb: MariaDBServer, tmp_path: Path, mode: dict[str, Any]
) -> None:
    rules = {
        "binlog-filter-rule": {"keep": {"ignore-event": ["truncate table"]}},
        "table-migrate-rule": [
            {"source": {"schema": "d", "table": "t"}, "binlog-filter-rule": ["keep"]}
        ],
    }
    story = Told(mariadb, tmp_path, filters=rules, apply=mode)
    t = story.create(
        table(10, "t", "id int", "v int", primary="id"),
        "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT)",
    )
    story.insert(t, {"id": 1, "v": 1}, {"id": 2, "v": 2})
    story.apply()
    fresh = table(11, "t", "id int", "v int", primary="id")
    story.statement(11, "TRUNCATE TABLE `t`", 10, fresh)
    story.insert(fresh, {"id": 1, "v": 7})
    story.update(fresh, {"id": 1, "v": 7}, {"v": 8})
    story.apply()
    assert story.rows("t") == [(1, 8), (2, 2)]


@MODES
def test_a_column_that_one_source_of_a_merged_table_drops_stays_for_the_others(
    mariadb: MariaDBServer, tmp_path: Path, mode: dict[str, Any]
) -> None:
    story = Told(mariadb, tmp_path, route=MERGE, apply=mode)
    a, b = sharded(story, "id int", "v int not null")
    story.insert(a, {"id": 1, "v": 10})
    story.insert(b, {"id": 2, "v": 20})
    bare = [
        in_schema(table(t.id, "orders", "id int", primary="id"), t.schema_id, t.schema_name)
        for t in (a, b)
    ]
    story.statement(6, "ALTER TABLE `orders` DROP COLUMN `v`", bare[0], schema="shard_1")
    story.insert(bare[0], {"id": 3})
    story.insert(b, {"id": 4, "v": 40})
    summary = story.apply()
    assert any("the columns stay" in warning for warning in summary.warnings)
    assert story.ask("SELECT * FROM shop.orders ORDER BY id") == [
        (1, 10),
        (2, 20),
        (3, None),
        (4, 40),
    ]
    story.statement(6, "ALTER TABLE `orders` DROP COLUMN `v`", bare[1], schema="shard_2")
    story.insert(bare[1], {"id": 5})
    story.apply()
    assert story.ask("SELECT id FROM shop.orders ORDER BY id") == [(1,), (2,), (3,), (4,), (5,)]

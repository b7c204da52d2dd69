"""What is known of tables: ten thousand are searched, sorted and paged, a source that is away is
named, and DDL is followed through names.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.changes.rules import Route, Routes
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.history.find import TimeBudget
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.history.tables import (
    DownstreamTables,
    DownstreamTablesCache,
    DownstreamTableSize,
    TableCatalog,
    TableInfo,
    TableSelection,
    read_table_catalog,
    table_schema_history,
)
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.relay import RelayLog
from sluice.relay.measures import CounterStore, TableCount
from sluice.relay.measures.measures import source_of
from sluice.relay.verification_log import TableVerified, Verifications, VerifiedRun
from sluice.tidb import tso
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table

MANY = 10_000
NOW = 1_795_251_600_000
HOSTILE = "shop.<img src=x onerror=alert(1)>\"'`\u202e"


def settings_of(url: str) -> Settings:
    return Settings(Upstream("unused"), Relay(url), Downstream(host="db", user="u"))


def names(found: list[object]) -> list[str]:
    return [one.name for one in found]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> TableCatalog:
    """Of 10,000 tables; every hundredth differs, every other one was verified."""
    settings = settings_of((tmp_path_factory.mktemp("tables") / "relay").as_uri())
    relay = RelayLog.open(settings.relay.url)
    source = source_of(downstream_name(settings.target))
    counts = {f"shop.t{n}": TableCount(n, 1, 2, tso.compose(NOW + n), NOW) for n in range(MANY)}
    CounterStore(relay).add_tables(source, counts | {HOSTILE: TableCount(1)}, "p", 1)
    verified = tuple(
        TableVerified(
            f"shop.t{n}", 7, NOW + n, 100, 1000, int(n % 100 == 0), "upstream", "verify-1"
        )
        for n in range(0, MANY, 2)
    )
    Verifications(relay).note(VerifiedRun("verify-1", 7, NOW, 1.0, "upstream", verified))
    replica = {
        ("shop", f"t{n}"): DownstreamTableSize("shop", f"t{n}", MANY - n, n) for n in range(MANY)
    }
    return read_table_catalog(settings, DownstreamTables(replica, NOW))


def test_ten_thousand_tables_are_searched_sorted_and_paged(many: TableCatalog) -> None:
    page, count = many.select(TableSelection(words="T99", sort="changes", down=True, limit=3))
    assert (names(page), count) == (["shop.t9999", "shop.t9998", "shop.t9997"], 111)
    page, count = many.select(TableSelection(words="shop t99", sort="rows", offset=110))
    assert (names(page), count) == (["shop.t99"], 111)
    page, count = many.select(TableSelection(only="differs", sort="verified", down=True, limit=1))
    assert (names(page), count) == (["shop.t9900"], 100)
    assert many.select(TableSelection(only="unverified"))[1] == MANY // 2 + 1
    assert many.select(TableSelection(offset=MANY + 5)) == ([], MANY + 1)
    assert many.select(TableSelection(words="onerror"))[0][0].name == HOSTILE
    one = many.named("shop.t200")
    assert one is not None
    assert (one.changes, one.differs, one.replica) == (
        203,
        True,
        DownstreamTableSize("shop", "t200", MANY - 200, 200),
    )


def test_a_source_that_does_not_answer_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    settings = settings_of((tmp_path / "relay").as_uri())
    (tmp_path / "relay" / "verified" / "last").mkdir(parents=True)
    (tmp_path / "relay" / "verified" / "last" / "000000000001.json").write_text("{damaged")
    tables = {("shop", "t"): DownstreamTableSize("shop", "t", 5, 6)}
    found = read_table_catalog(
        settings, DownstreamTables(tables, NOW, problem="the server is away")
    )
    assert names(list(found.tables)) == ["shop.t"]
    assert found.errors["downstream"] == "the server is away"
    assert "verified/last" in found.errors["verified"]


def test_tables_stand_under_their_names_upstream_with_the_rows_of_where_they_go(
    tmp_path: Path,
) -> None:
    routes = Routes((Route("shop_*", "orders", "shop", "orders", "route 1"),))
    settings = replace(settings_of((tmp_path / "relay").as_uri()), routes=routes)
    relay = RelayLog.open(settings.relay.url)
    source = source_of(downstream_name(settings.target))
    CounterStore(relay).add_tables(
        source, {"shop_1.orders": TableCount(1), "shop_2.orders": TableCount(2)}, "p", 1
    )
    there = DownstreamTableSize("shop", "orders", 3, 9)
    found = read_table_catalog(settings, DownstreamTables({("shop", "orders"): there}, NOW))
    assert [(one.name, one.target, one.replica) for one in found.tables] == [
        ("shop_1.orders", "shop.orders", there),
        ("shop_2.orders", "shop.orders", there),
    ]


def test_the_downstream_is_asked_by_one_thread_and_keeps_nobody_waiting() -> None:
    asked, go = [], threading.Event()

    def read(downstream: Downstream) -> dict[tuple[str, str], DownstreamTableSize]:
        asked.append(downstream)
        go.wait(60)
        return {("a", "b"): DownstreamTableSize("a", "b", 1, 1)}

    replicas, target = DownstreamTablesCache(read), Downstream(host="db", user="u")
    assert replicas.of(target) == replicas.of(target) == DownstreamTables(reading=True)
    go.set()
    found = replicas.of(target, wait_s=60)
    assert (len(asked), list(found.tables), found.reading, found.problem) == (
        1,
        [("a", "b")],
        False,
        "",
    )
    assert replicas.of(target) == found
    assert len(asked) == 1


def test_rows_and_sizes_come_from_the_servers_own_schema(mariadb_server: MariaDBServer) -> None:
    mariadb_server.empty()
    with mariadb_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS tables_page")
        cursor.execute("CREATE TABLE tables_page.`T <b>` (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO tables_page.`T <b>` VALUES (1), (2)")
        connection.commit()
        found = DownstreamTablesCache().of(mariadb_server.downstream, wait_s=120)
        cursor.execute("DROP DATABASE tables_page")
    assert found.problem == ""
    there = found.tables["tables_page", "t <b>"]
    assert (there.schema, there.name) == ("tables_page", "T <b>")
    assert there.bytes


def test_a_downstream_that_is_away_is_a_problem_and_no_error() -> None:
    found = DownstreamTablesCache().of(Downstream(host="127.0.0.1", port=1, user="u"), wait_s=60)
    assert not found.tables
    assert "127.0.0.1:1" in found.problem


def test_ddl_of_a_table_is_followed_through_its_names(tmp_path: Path) -> None:
    story = Story(None, tmp_path)  # type: ignore[arg-type] # nothing is applied
    made = story.create(
        table(11, "orders", "id int", "v int", primary="id"), "CREATE TABLE orders …"
    )
    story.create(table(12, "others", "id int", primary="id"), "CREATE TABLE others …")
    wider = replace(made, columns=(*made.columns, column(3, "w varchar(9)")))
    story.statement(5, "ALTER TABLE orders ADD COLUMN w varchar(9)", wider)
    renamed = replace(wider, name="sales")
    story.statement(14, "RENAME TABLE orders TO sales", renamed)
    story.insert(renamed, {"id": 1, "v": 2, "w": None})
    story.statement(4, "DROP TABLE sales", 11)
    past = HistoryLog.open(settings_of(story.url))
    found = table_schema_history(past, "d.sales", past.last, TimeBudget(60))
    assert [(one.before, one.after, one.drops) for one in found.changes] == [
        ("d.sales", "", True),
        ("d.orders", "d.sales", False),
        ("d.orders", "d.orders", False),
        ("", "d.orders", False),
    ]
    assert [(c.name, c.old, c.new) for c in found.changes[2].columns] == [("w", "", "VARCHAR(9)")]
    assert (found.name, found.complete) == ("d.orders", True)
    assert found.columns == [("id", "INT", False), ("v", "INT", True), ("w", "VARCHAR(9)", True)]


def test_ddl_is_looked_for_step_by_step_with_the_same_outcome(tmp_path: Path) -> None:
    story = Story(None, tmp_path)  # type: ignore[arg-type] # nothing is applied
    made = story.create(table(11, "a", "id int", primary="id"), "CREATE TABLE a …")
    for name in "bcd":
        story.insert(made, {"id": ord(name)})
        made = replace(made, name=name)
        story.statement(14, f"RENAME TABLE … TO {name}", made)
    past = HistoryLog.open(settings_of(story.url))
    name, until, kinds, steps = "d.d", past.last, [], 0
    while True:
        step = table_schema_history(past, name, until, TimeBudget(0))
        kinds += [change.after for change in step.changes]
        steps += 1
        if step.complete:
            break
        assert step.through < until
        name, until = step.name, step.through
    assert kinds == ["d.d", "d.c", "d.b", "d.a"]
    assert steps > 7


def test_a_last_change_counts_by_the_upstreams_clock() -> None:
    now_ms, behind_ms = 1_800_000_000_000, -8 * 86_400_000
    changed = TableCount(1, 0, 0, tso.compose(now_ms + behind_ms - 5_000), now_ms, ())
    assert TableInfo("d.a", "d.a", changed).changed_ms(behind_ms) == now_ms - 5_000
    assert TableInfo("d.a", "d.a").changed_ms(behind_ms) == 0

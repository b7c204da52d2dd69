"""Tables that have fewer or more columns downstream: rules are proposed, and replicate them."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.downstream import MySQLSession
from sluice.etl.operate.partial_tables import PartialTables, held_columns, propose_partial
from sluice.etl.settings import Settings
from sluice.etl.settings.rules import parse_filter
from sluice.tidb.ddl_actions import Action
from sluice.tidb.schema import Table
from tests.etl.apply.ruled_columns import apply, names, settings_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table, wider

WIDE = table(
    11, "t", "id int", "a varchar(9)", "b varchar(9)", "c int", primary="id", unique=("a,c",)
)


@contextlib.contextmanager
def session(settings: Settings) -> Iterator[MySQLSession]:
    made = MySQLSession(settings.downstream)
    made.connect()
    try:
        yield made
    finally:
        made.close()


def proposed(settings: Settings, *tables: Table) -> PartialTables:
    with session(settings) as opened:
        return propose_partial(settings, tables, held_columns(opened))


def altered(server: MariaDBServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
def test_a_table_with_fewer_and_more_columns_is_replicated_by_the_proposed_rules(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(WIDE, "CREATE TABLE t (...)")
    rows = [{"id": n, "a": f"a{n}", "b": f"b{n}", "c": n} for n in range(5)]
    story.insert(WIDE, *rows)
    settings = settings_of(story, mode=mode)
    apply(story, settings)
    altered(
        mariadb,
        "ALTER TABLE d.t DROP COLUMN b, ADD COLUMN mine INT NOT NULL DEFAULT 7 FIRST,"
        " ADD COLUMN note TEXT, ADD COLUMN twice INT AS (c * 2)",
        "UPDATE d.t SET note = 'own'",
    )
    found = proposed(settings, WIDE)
    assert found.problems == []
    assert "# d.t has columns of its own downstream: mine, note, twice\n" in found.text
    rules = tomllib.loads(found.text)["filter"]
    assert rules == {"columns": [{"tables": ["d.t"], "leave-out": ["b"]}]}
    partial = replace(settings, filters=parse_filter(rules)[0])
    assert (
        proposed(partial, WIDE).text == "# d.t has columns of its own downstream: mine, note, twice"
    )
    rows[1] = story.update(WIDE, rows[1], {"c": 90})
    rows[2] = story.update(WIDE, rows[2], {"id": 50})
    story.delete(WIDE, rows.pop(3))
    rows.append({"id": 9, "a": "new", "b": "x", "c": 9})
    story.insert(WIDE, rows[-1])
    apply(story, partial)
    more = wider(WIDE, column(6, "e int"))
    story.statement(Action.ADD_COLUMN, "ALTER TABLE t ADD COLUMN e int", more)
    rows.append({"id": 10, "a": "last", "b": "x", "c": 1, "e": 3})
    story.insert(more, rows[-1])
    apply(story, partial)
    assert set(names(mariadb)) == {"mine", "id", "a", "c", "note", "twice", "e"}
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, a, c, e, mine, twice FROM d.t ORDER BY id")
        assert list(cursor.fetchall()) == sorted(
            (row["id"], row["a"], row["c"], row.get("e"), 7, row["c"] * 2) for row in rows
        )
        # a row that isn't changed keeps what is the downstream's own
        cursor.execute("SELECT id FROM d.t WHERE note = 'own' ORDER BY id")
        assert {0, 4} <= {row[0] for row in cursor.fetchall()}


def test_what_no_rule_can_do_is_named(mariadb: MariaDBServer, tmp_path: Path) -> None:
    story = Story(mariadb, tmp_path)
    settings = settings_of(story)
    assert proposed(settings, WIDE) == PartialTables(), "a table that isn't there is made whole"
    altered(
        mariadb,
        "CREATE DATABASE IF NOT EXISTS d",
        "CREATE TABLE d.t (id INT PRIMARY KEY, b VARCHAR(9), mine INT NOT NULL)",
    )
    found = proposed(settings, WIDE)
    assert found.problems == [
        "d.t: the downstream's own column mine is NOT NULL without a default, so no row can be"
        " inserted: give it one",
        "the proposed rule leaves out column a of d.t, which the key u2 needs",
    ]
    assert found.text == ""

"""A transaction is taken back, row by row as it left them.

What was changed since is a conflict, and named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.cli import main
from sluice.etl.changes.rules import Route, Routes
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.history.undo import (
    UndoError,
    for_upstream,
    invert_changes,
    read_transaction,
    script,
)
from sluice.etl.history.undo.check import BACK, CHANGED_SINCE, DELETED_SINCE, KEY_TAKEN
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.etl.settings.rules import parse_filter
from sluice.relay import DELETE, INSERT, UPDATE, RelayLog
from sluice.tidb.column_types import FLAG_ON_UPDATE_NOW
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from tests.etl.history.undo.undoing import state, take_back, would_conflict
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table, wider

Row = dict[str, Any]
USERS = table(9, "users", "id int", "email varchar(20)", "age int", primary="id", unique=("email",))
CREATE_USERS = (
    "CREATE TABLE `users` (`id` int PRIMARY KEY, `email` varchar(20), `age` int, UNIQUE `u2`"
    " (`email`))"
)


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return Story(mariadb, tmp_path)


def of(story: Story, routes: Routes = Routes()) -> Settings:
    return Settings(Upstream("unused"), Relay(story.url), story.server.downstream, routes=routes)


def newest(story: Story) -> int:
    """The commit timestamp of what was told last."""
    last = RelayLog.open(story.url).last()
    assert last is not None
    return last.hi


def users(story: Story) -> list[Row]:
    story.create(USERS, CREATE_USERS)
    rows = [{"id": n, "email": f"u{n}", "age": 20 + n} for n in range(1, 6)]
    story.insert(USERS, *rows)
    return rows


def there_and_back(story: Story, tables: list[str], act: Callable[[], None]) -> None:
    """What a transaction did is taken back without a conflict, and everything is as before it."""
    story.apply()
    before = state(story.server, tables)
    act()
    story.apply()
    assert state(story.server, tables) != before
    dry = would_conflict(of(story), newest(story))
    assert (dry.count, dry.conflicts) == (0, [])
    undone, expected = take_back(story.server, of(story), newest(story))
    assert undone == expected > 0
    assert state(story.server, tables) == before


def test_an_accident_that_removed_everything_is_taken_back(story: Story) -> None:
    rows = users(story)
    there_and_back(story, ["d.users"], lambda: story.delete(USERS, *rows))


def test_values_that_rows_exchanged_are_exchanged_again(story: Story) -> None:
    a, b, c, *_ = users(story)
    there_and_back(
        story,
        ["d.users"],
        lambda: story.changes(
            (USERS, UPDATE, encode_update(USERS, a, a | {"email": "u2"})),
            (USERS, UPDATE, encode_update(USERS, b, b | {"email": "u3", "age": 0})),
            (USERS, UPDATE, encode_update(USERS, c, c | {"email": "u1"})),
        ),
    )


def test_a_row_that_is_changed_several_times_is_looked_at_once(story: Story) -> None:
    a, b, *_ = users(story)
    once = a | {"age": 90}
    new = {"id": 50, "email": "u50", "age": 1}

    def act() -> None:
        story.changes(
            (USERS, UPDATE, encode_update(USERS, a, once)),
            (USERS, UPDATE, encode_update(USERS, once, once | {"age": 91, "email": None})),
            (USERS, INSERT, encode_insert(USERS, new)),
            (USERS, DELETE, encode_delete(USERS, new)),
            (USERS, DELETE, encode_delete(USERS, b)),
            (USERS, INSERT, encode_insert(USERS, b | {"age": None})),
        )

    there_and_back(story, ["d.users"], act)


def test_rows_without_a_key_are_found_by_all_their_values_as_often_as_they_are_there(
    story: Story,
) -> None:
    heap = table(9, "h", "a varchar(9)", "b double(20,6)", "c int")
    story.create(heap, "CREATE TABLE `h` (`a` varchar(9), `b` double(20,6), `c` int)")
    rows: list[Row] = [{"a": "x", "b": -0.000001, "c": None} for _ in range(3)] + [
        {"a": "X", "b": 0.3, "c": 1}
    ]
    story.insert(heap, *rows)
    there_and_back(
        story,
        ["d.h"],
        lambda: story.changes(
            (heap, DELETE, encode_delete(heap, rows[0])),
            (heap, UPDATE, encode_update(heap, rows[1], rows[1] | {"c": 5})),
            (heap, INSERT, encode_insert(heap, {"a": "X", "b": 0.3, "c": 1, "_tidb_rowid": 77})),
        ),
    )


def test_text_that_is_no_utf_8_comes_again_byte_for_byte(story: Story) -> None:
    made = table(9, "t", "id int", "v varchar(9)", primary="id")
    story.create(made, "CREATE TABLE `t` (`id` int PRIMARY KEY, `v` varchar(9))")
    rows: list[Row] = [{"id": 1, "v": b"\xe9\xff"}, {"id": 2, "v": "é"}]
    story.insert(made, *rows)
    there_and_back(
        story,
        ["d.t"],
        lambda: story.changes(
            (made, DELETE, encode_delete(made, rows[0])),
            (made, UPDATE, encode_update(made, rows[1], {"id": 2, "v": b"\xe9"})),
        ),
    )


def test_a_moment_that_was_not_changed_stays_though_its_column_is_one_of_on_update(
    story: Story,
) -> None:
    made = table(9, "t", "id int", "v int", "at timestamp(3)", primary="id")
    story.create(
        made,
        "CREATE TABLE `t` (`id` int PRIMARY KEY, `v` int, `at` timestamp(3) NOT NULL DEFAULT"
        " CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3))",
    )
    row = {"id": 1, "v": 1, "at": "2026-01-02 03:04:05.678"}
    story.insert(made, row)
    there_and_back(story, ["d.t"], lambda: story.update(made, row, {"v": 2}) and None)


def test_a_moment_of_a_column_added_since_stays_though_it_is_one_of_on_update(story: Story) -> None:
    story.create(USERS, CREATE_USERS)
    row = {"id": 1, "email": "u1", "age": 21}
    story.insert(USERS, row)
    story.update(USERS, row, {"age": 22})
    accident = newest(story)
    at = "`at` datetime(3) DEFAULT '2020-01-01' ON UPDATE CURRENT_TIMESTAMP(3)"
    moment = "2020-01-01 00:00:00"
    seen = column(4, "at datetime(3)", default=moment, origin_default=moment)
    story.statement(
        5,
        f"ALTER TABLE `users` ADD COLUMN {at}",
        wider(USERS, replace(seen, flag=FLAG_ON_UPDATE_NOW)),
    )
    story.apply()
    assert take_back(story.server, of(story), accident) == (1, 1)
    (there,) = story.rows("users", "`age`, CAST(`at` AS CHAR)")
    assert there == (21, "2020-01-01 00:00:00.000")


def test_rows_that_were_taken_back_before_are_told_from_rows_that_others_changed(
    story: Story,
) -> None:
    a, b, c, *_ = users(story)
    story.changes(
        (USERS, UPDATE, encode_update(USERS, a, a | {"age": 1})),
        (USERS, DELETE, encode_delete(USERS, b)),
        (USERS, DELETE, encode_delete(USERS, c)),
    )
    accident = newest(story)
    story.update(USERS, a | {"age": 1}, a)
    story.insert(USERS, b, c | {"age": 0})
    story.apply()
    dry = would_conflict(of(story), accident)
    assert {(one.row, one.why) for one in dry.conflicts} == {
        ("id=1", BACK), ("id=2", BACK), ("id=3", KEY_TAKEN),
    }  # fmt: skip
    assert (dry.count, dry.back) == (3, 2)


def test_rows_changed_since_are_conflicts_and_nothing_of_them_is_touched(story: Story) -> None:
    a, b, c, d, _ = users(story)
    story.changes(
        (USERS, UPDATE, encode_update(USERS, a, a | {"age": 1})),
        (USERS, UPDATE, encode_update(USERS, b, b | {"age": 2})),
        (USERS, DELETE, encode_delete(USERS, c)),
        (USERS, DELETE, encode_delete(USERS, d)),
        (USERS, INSERT, encode_insert(USERS, {"id": 60, "email": "u60", "age": 6})),
    )
    accident = newest(story)
    story.update(USERS, a | {"age": 1}, {"age": 100})
    story.delete(USERS, b | {"age": 2})
    story.insert(USERS, c | {"age": 0}, {"id": 70, "email": "u4", "age": 7})
    story.apply()
    dry = would_conflict(of(story), accident)
    assert {(one.row, one.why) for one in dry.conflicts} == {
        ("id=1", CHANGED_SINCE), ("id=2", DELETED_SINCE), ("id=3", KEY_TAKEN), ("id=4", KEY_TAKEN),
    }  # fmt: skip
    assert dry.count == 4
    assert dry.checkpoint == newest(story)
    before = state(story.server, ["d.users"])
    with pytest.raises(Exception, match="Duplicate entry"):
        take_back(story.server, of(story), accident)
    assert state(story.server, ["d.users"]) == before
    alone = newest(story)
    assert would_conflict(of(story), alone).count == 0


def test_an_update_of_a_row_changed_since_shows_in_the_counts(story: Story) -> None:
    a, *_ = users(story)
    story.update(USERS, a, {"age": 1})
    accident = newest(story)
    story.update(USERS, a | {"age": 1}, {"email": "other"})
    story.apply()
    before = state(story.server, ["d.users"])
    assert take_back(story.server, of(story), accident) == (0, 1)
    assert state(story.server, ["d.users"]) == before


def test_a_table_is_known_under_the_name_and_with_the_columns_it_has_now(story: Story) -> None:
    a, b, *_ = users(story)
    story.changes(
        (USERS, UPDATE, encode_update(USERS, a, a | {"age": 1})),
        (USERS, DELETE, encode_delete(USERS, b)),
    )
    accident = newest(story)
    wider = replace(USERS, columns=(*USERS.columns, column(4, "note varchar(9)")))
    story.statement(5, "ALTER TABLE `users` ADD COLUMN `note` varchar(9)", wider)
    story.update(wider, a | {"age": 1, "note": None}, {"note": "kept"})
    renamed = replace(wider, name="people")
    story.statement(14, "RENAME TABLE `d`.`users` TO `d`.`people`", renamed)
    story.apply()
    assert would_conflict(of(story), accident).count == 0
    assert take_back(story.server, of(story), accident) == (2, 2)
    assert story.rows("people")[:2] == [(1, "u1", 21, "kept"), (2, "u2", 22, None)]


@pytest.mark.parametrize(
    ("kind", "query", "after", "named"),
    [
        (11, "TRUNCATE TABLE `users`", (9, replace(USERS, id=10)), "TRUNCATE"),
        (4, "DROP TABLE `users`", (9,), "DROP TABLE"),
        (
            6,
            "ALTER TABLE `users` DROP `age`",
            (replace(USERS, columns=USERS.columns[:2]),),
            "column age",
        ),
    ],
)
def test_what_ddl_has_removed_since_is_refused_with_the_hint(
    story: Story, kind: int, query: str, after: tuple[Table | int, ...], named: str
) -> None:
    a, *_ = users(story)
    story.delete(USERS, a)
    accident = newest(story)
    story.statement(kind, query, *after)
    with pytest.raises(
        UndoError, match=f"{named}.*restore the moment before.*before:{accident} --table d.users"
    ):
        read_transaction(HistoryLog.open(of(story)), accident)


def test_ddl_is_refused_and_what_is_no_transaction_is_said(story: Story) -> None:
    users(story)
    last = newest(story)
    story.statement(4, "DROP TABLE `users`", 9)
    with pytest.raises(UndoError, match=r"DROP TABLE `users`.*sluice restore"):
        read_transaction(HistoryLog.open(of(story)), newest(story))
    with pytest.raises(UndoError, match="no transaction was committed"):
        read_transaction(HistoryLog.open(of(story)), last - 1)
    with pytest.raises(UndoError, match="isn't there"):
        read_transaction(HistoryLog.open(of(story)), newest(story) + 1)
    with pytest.raises(UndoError, match=r"no such table, but d\.users"):
        read_transaction(HistoryLog.open(of(story)), last, ["d.other"])


def test_the_replica_is_looked_at_under_its_own_names(story: Story) -> None:
    a, *_ = users(story)
    story.delete(USERS, a)
    story.apply()
    connection = story.server.connect()
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE r")
        cursor.execute("RENAME TABLE d.users TO r.members")
        routed = of(story, Routes((Route("d", "users", "r", "members", "a rule"),)))
        assert would_conflict(routed, newest(story)).count == 0
        cursor.execute("INSERT INTO r.members VALUES (1, 'somebody', 0)")
        (conflict,) = would_conflict(routed, newest(story)).conflicts
    connection.close()
    assert (conflict.table, conflict.row) == ("r.members", "id=1")


def test_a_table_that_shares_the_replicas_by_a_column_is_not_looked_at(story: Story) -> None:
    users(story)
    story.apply()
    routes = Routes((Route("d", "u*", "d", "all", "a rule", "origin"),))
    (why,) = would_conflict(of(story, routes), newest(story)).unchecked
    assert why == "d.users shares d.all with other tables, by the column origin"


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("columns", {"leave-out": ["age"]}),
        ("columns", {"rename": {"age": "years"}}),
        ("rows", {"where": "age > 20"}),
    ],
)
def test_a_table_that_rules_shape_is_not_looked_at_and_the_rule_is_named(
    story: Story, key: str, rule: dict[str, Any]
) -> None:
    users(story)
    story.apply()
    filters = parse_filter({key: [{"tables": ["d.users"], **rule}]})[0]
    found = would_conflict(replace(of(story), filters=filters), newest(story))
    (why,) = found.unchecked
    assert why.startswith(f"d.users: [[filter.{key}]] 1 (") and found.rows == 0


def test_nothing_of_rows_or_names_gets_out_of_a_comment_or_a_literal(story: Story) -> None:
    name = "x\n; DROP TABLE d.users; -- é"
    made = replace(table(12, name, "id int", "t text", primary="id"))
    users(story)
    story.create(made, f"CREATE TABLE `{name}` (`id` int PRIMARY KEY, `t` text)")
    story.insert(made, {"id": 1, "t": "'; DROP TABLE d.users; -- \\"})
    transaction = read_transaction(HistoryLog.open(of(story)), newest(story))
    lines = list(
        script(transaction, for_upstream([invert_changes(each) for each in transaction.tables]))
    )
    for line in lines:
        assert line.startswith(b"--") or line.endswith(b";")
        if line.startswith(b"--"):
            assert b"\n" not in line
            assert line.isascii()
    assert not any(line.startswith(b"COMMIT") for line in lines)
    story.apply()
    assert take_back(story.server, of(story), newest(story)) == (1, 1)
    assert len(story.rows("users")) == 5


def test_the_script_begins_with_what_becomes_of_each_tables_rows(story: Story) -> None:
    a, b, *_ = users(story)
    story.changes(
        (USERS, DELETE, encode_delete(USERS, a)),
        (USERS, UPDATE, encode_update(USERS, b, b | {"age": 0})),
    )
    transaction = read_transaction(HistoryLog.open(of(story)), newest(story))
    tables = for_upstream([invert_changes(each) for each in transaction.tables])
    heading = [line for line in script(transaction, tables) if line.startswith(b"--")]
    assert b"--   d.users: 1 come again, 1 become what they were (rows)" in heading


def test_tidb_gets_all_digits_of_a_float_the_replica_those_that_it_has(story: Story) -> None:
    made = table(9, "t", "id int", "f float", primary="id")
    story.create(made, "CREATE TABLE `t` (`id` int PRIMARY KEY, `f` float)")
    story.insert(made, {"id": 1, "f": 1234567946895360.0})
    transaction = read_transaction(HistoryLog.open(of(story)), newest(story))
    text = b"\n".join(
        script(transaction, for_upstream([invert_changes(each) for each in transaction.tables]))
    )
    (digits,) = re.findall(rb"`f`<=>(\S+?)\)?;", text)
    assert float(digits) == float(np.float32(1234567946895360.0)) != float(np.float32(1.23457e15))
    story.apply()
    assert would_conflict(of(story), newest(story)).count == 0


def test_the_command_writes_a_script_and_its_dry_run_ends_with_1_where_rows_were_changed_since(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, *_ = users(story)
    story.update(USERS, a, {"age": 1})
    accident = newest(story)
    story.apply()
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "http://unused:1"\n[relay]\nurl = "{story.url}"\n[downstream]\nhost'
        f' = "127.0.0.1"\nport = {story.server.port}\nuser = "root"\n'
    )

    def ran(*arguments: str, of: str = str(accident)) -> tuple[int | str | None, str]:
        with pytest.raises(SystemExit) as ended:
            main(["undo", "--config", str(config), of, *arguments])
        return ended.value.code, capsys.readouterr().out

    assert ran("--output", str(tmp_path / "undo.sql")) == (0, "")
    assert ran("--output", str(tmp_path / "as-restore.sql"), of=f"before:{accident}") == (0, "")
    assert (tmp_path / "as-restore.sql").read_bytes() == (tmp_path / "undo.sql").read_bytes()
    assert ran(of="before:yesterday")[0] == 2
    assert b"UPDATE `d`.`users` SET `age`=21 WHERE" in (tmp_path / "undo.sql").read_bytes()
    assert ran("--dry-run")[0] == 0
    story.update(USERS, a | {"age": 1}, {"age": 2})
    story.apply()
    code, text = ran("--dry-run", "--table", "d.*")
    assert code == 1
    assert "conflict  d.users [id=1] was changed since" in text
    code, text = ran("--dry-run", "--json")
    assert (code, json.loads(text)["count"]) == (1, 1)
    assert ran("--table", "d.other")[0] == 1

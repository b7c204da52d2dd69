"""That a table looks as after a DDL doesn't say who made it so: nothing is passed over on that
account alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.changes.rules import Route, Routes
from sluice.etl.downstream.ddl import DdlError
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.relay import UPDATE
from sluice.tidb.rows import encode_update
from sluice.tidb.schema import Index, Table
from tests.etl.apply.test_safe_mode import forget, leave_checkpoint
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, column, partitioned, table

ADD_COLUMN, ADD_INDEX, DROP_TABLE, MODIFY_COLUMN, DROP_PARTITION = 5, 7, 4, 12, 20
_AS_IT_IS = Routes()
ID, V = column(1, "id int"), column(2, "v int")


def with_index(of: Table) -> Table:
    return replace(of, indexes=(*of.indexes, Index(9, "by_v", (("v", 1, -1),))))


def left_by_a_drainer(
    story: Story, at: int, *statements: str, routes: Routes = _AS_IT_IS
) -> Settings:
    """The downstream as of `at`, and what else was done there.

    Nothing tells how far the Drainer came.
    """
    settings = Settings(
        Upstream("unused"), Relay(story._url), story.server.downstream, routes=routes
    )
    run_apply(settings, until_ts=at, run_seconds=240, prepare=local_preparer(settings))
    with story.server.connect() as connection:
        for statement in statements:
            connection.cursor().execute(statement)
        leave_checkpoint(connection, at, sluice={"safe-until": story._ts})
    forget(story._url)
    return settings


def finish(story: Story, settings: Settings) -> None:
    run_apply(settings, until_ts=story._ts, run_seconds=240, prepare=local_preparer(settings))


@pytest.mark.parametrize("name", ["item", "Item"])
def test_an_index_that_a_dba_had_built_makes_no_change_before_it_vanish(
    mariadb: MariaDBServer, tmp_path: Path, name: str
) -> None:
    story = Story(mariadb, tmp_path)
    item = story.create(
        table(11, name, ID, V, primary="id"),
        f"CREATE TABLE `{name}` (`id` int primary key, `v` int)",
    )
    first = {"id": 1, "v": 1}
    story.insert(item, first)
    at = story._ts
    story.insert(item, {"id": 2, "v": 2}, {"id": 3, "v": 3})
    story.update(item, first, {"v": 10})
    story.statement(ADD_INDEX, f"ALTER TABLE `{name}` ADD INDEX `by_v` (`v`)", with_index(item))
    story.insert(item, {"id": 4, "v": 4})
    finish(story, left_by_a_drainer(story, at, f"ALTER TABLE d.`{name}` ADD INDEX by_v (v)"))
    assert story.rows(name) == [(1, 10), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("there", [False, True])
def test_a_column_that_is_there_already_is_the_drainers_only_if_the_rows_before_it_are(
    mariadb: MariaDBServer, tmp_path: Path, there: bool
) -> None:
    story = Story(mariadb, tmp_path)
    item = story.create(
        table(11, "item", ID, V, primary="id"),
        "CREATE TABLE `item` (`id` int primary key, `v` int)",
    )
    first, second = {"id": 1, "v": 1}, {"id": 2, "v": 2}
    story.insert(item, first, second)
    at = story._ts
    story.update(item, first, {"v": 10})
    story.delete(item, second)
    story.statement(
        ADD_COLUMN,
        "ALTER TABLE `item` ADD COLUMN `w` int DEFAULT 7",
        table(11, "item", ID, V, column(3, "w int", default="7", origin_default="7"), primary="id"),
    )
    end = story._ts
    done = (
        ["UPDATE d.item SET v = 10 WHERE id = 1", "DELETE FROM d.item WHERE id = 2"]
        if there
        else []
    )
    settings = left_by_a_drainer(story, at, *done, "ALTER TABLE d.item ADD COLUMN w int DEFAULT 7")
    if not there:
        with pytest.raises(
            DdlError,
            match=(
                rf"at commit_ts {end}: ALTER TABLE .* look as if it had run, but .* d.item, key"
                r" id=1, .*undo it"
            ),
        ):
            finish(story, settings)
        assert story.rows("item") == [(1, 1, 7), (2, 2, 7)]
        with story.server.connect() as connection:
            connection.cursor().execute("ALTER TABLE d.item DROP COLUMN w")
    finish(story, settings)
    assert story.rows("item") == [(1, 10, 7)]


def test_a_dropped_table_with_capitals_in_its_name_does_not_look_as_if_it_had_run(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    item = story.create(
        table(11, "Item", ID, V, primary="id"),
        "CREATE TABLE `Item` (`id` int primary key, `v` int)",
    )
    log = story.create(table(12, "log", "a int"), "CREATE TABLE `log` (`a` int)")
    story.insert(item, {"id": 1, "v": 1})
    at = story._ts
    story.insert(log, {"a": 1})
    story.statement(DROP_TABLE, "DROP TABLE `Item`", 11, name="Item")
    finish(story, left_by_a_drainer(story, at))
    assert story.rows("log") == [(1,)]


def test_a_key_that_has_another_name_since_is_looked_up_by_it(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    item = story.create(
        table(11, "50%", column(1, "%s int"), V, primary="%s"),
        "CREATE TABLE `50%` (`%s` int primary key, `v` int)",
    )
    first = {"%s": 1, "v": 1}
    story.insert(item, first, {"%s": 2, "v": 2})
    at = story._ts
    story.update(item, first, {"v": 10})
    story.delete(item, {"%s": 2, "v": 2})
    renamed = table(11, "50%", replace(ID, name="a%%s"), V, primary="a%%s")
    story.statement(
        MODIFY_COLUMN, "ALTER TABLE `50%` CHANGE COLUMN `%s` `a%%s` int NOT NULL", renamed
    )
    story.insert(renamed, {"a%%s": 3, "v": 3})
    done = ["UPDATE d.`50%` SET v = 10 WHERE v = 1", "DELETE FROM d.`50%` WHERE v = 2"]
    finish(
        story,
        left_by_a_drainer(
            story, at, *done, "ALTER TABLE d.`50%` CHANGE COLUMN `%s` `a%%s` int NOT NULL"
        ),
    )
    assert story.rows("50%") == [(1, 10), (3, 3)]


@pytest.mark.parametrize("there", [False, True])
def test_a_number_that_only_a_literal_of_its_type_equals_is_found(
    mariadb: MariaDBServer, tmp_path: Path, there: bool
) -> None:
    story = Story(mariadb, tmp_path)
    made = table(11, "item", ID, column(2, "f float"), column(3, "b varbinary(9)"), primary="id")
    item = story.create(
        made, "CREATE TABLE `item` (`id` int primary key, `f` float, `b` varbinary(9))"
    )
    row = {"id": 1, "f": 0.5, "b": b"a\0"}
    story.insert(item, row)
    at = story._ts
    story.update(item, row, {"f": 0.1, "b": b"\xff\\"})
    added = replace(item, columns=(*item.columns, column(4, "w int")))
    story.statement(ADD_COLUMN, "ALTER TABLE `item` ADD COLUMN `w` int", added)
    done = [
        f"UPDATE d.item SET f = 0.1, b = x'{'ff5c' if there else 'ff5c5c'}'",
        "ALTER TABLE d.item ADD COLUMN w int",
    ]
    settings = left_by_a_drainer(story, at, *done)
    if not there:
        with pytest.raises(DdlError, match=r"d\.item, key id=1, is not as commit_ts"):
            finish(story, settings)
        return
    finish(story, settings)
    assert story.rows("item") == [(1, 0.1, b"\xff\\", None)]


@pytest.mark.parametrize("there", [False, True])
def test_rows_without_a_key_that_are_gone_are_no_reason_to_stop_before_a_ddl(
    mariadb: MariaDBServer, tmp_path: Path, there: bool
) -> None:
    story = Story(mariadb, tmp_path)
    note = story.create(
        table(12, "note", "a int", "b int"), "CREATE TABLE `note` (`a` int, `b` int)"
    )
    first, second = {"a": 1, "b": 1}, {"a": 2, "b": 2}
    story.insert(note, first, second)
    at = story._ts
    story.delete(note, first)
    story.update(note, second, {"b": 3})
    added = replace(note, columns=(*note.columns, column(3, "c int")))
    story.statement(ADD_COLUMN, "ALTER TABLE `note` ADD COLUMN `c` int", added)
    done = ["DELETE FROM d.note WHERE a = 1", "UPDATE d.note SET b = 3 WHERE a = 2"][
        0 if there else 1 :
    ]
    settings = left_by_a_drainer(story, at, *done, "ALTER TABLE d.note ADD COLUMN c int")
    if not there:
        with pytest.raises(DdlError, match=r"d\.note, a table without a key, is not as commit_ts"):
            finish(story, settings)
        return
    finish(story, settings)
    assert story.rows("note") == [(2, 3, None)]


def test_a_row_that_went_from_one_merged_table_to_another_is_looked_for_once(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    parts = [
        story.create(
            table(n, f"p{n}", ID, V, primary="id"),
            f"CREATE TABLE `p{n}` (`id` int primary key, `v` int)",
        )
        for n in (11, 12)
    ]
    note = story.create(table(13, "note", "a int"), "CREATE TABLE `note` (`a` int)")
    story.insert(parts[0], {"id": 1, "v": 1})
    at = story._ts
    story.delete(parts[0], {"id": 1, "v": 1})
    story.insert(parts[1], {"id": 1, "v": 2})
    added = replace(note, columns=(*note.columns, column(2, "b int")))
    story.statement(ADD_COLUMN, "ALTER TABLE `note` ADD COLUMN `b` int", added)
    routes = Routes((Route("d", "p*", "d", "whole", "the parts"),))
    done = ["UPDATE d.whole SET v = 2", "ALTER TABLE d.note ADD COLUMN b int"]
    finish(story, left_by_a_drainer(story, at, *done, routes=routes))
    assert story.rows("whole") == [(1, 2)]


def test_a_key_that_rows_hand_on_in_one_transaction_is_there(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    made = table(11, "item", "id int", "v int", primary="id", clustered=False)
    item = story.create(
        made,
        "CREATE TABLE `item` (`id` int primary key /*T![clustered_index] NONCLUSTERED */, `v` int)",
    )
    first, second = {"id": 1, "v": 1}, {"id": 2, "v": 2}
    story.insert(item, first, second)
    at = story._ts
    story.changes(  # UPDATE item SET id = 3 - id, the second row first
        (item, UPDATE, encode_update(item, second, second | {"id": 1})),
        (item, UPDATE, encode_update(item, first, first | {"id": 2})),
    )
    added = replace(item, columns=(*item.columns, column(3, "w int")))
    story.statement(ADD_COLUMN, "ALTER TABLE `item` ADD COLUMN `w` int", added)
    done = [
        "DELETE FROM d.item",
        "INSERT INTO d.item VALUES (1, 2), (2, 1)",
        "ALTER TABLE d.item ADD COLUMN w int",
    ]
    finish(story, left_by_a_drainer(story, at, *done))
    assert story.rows("item") == [(1, 2, None), (2, 1, None)]


def test_rows_that_went_with_their_partition_are_not_missed(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    parts = [(110, "p10", "10"), (120, "p20", "20")]
    story = Story(mariadb, tmp_path)
    by_id = (
        "PARTITION BY RANGE (`id`) (PARTITION `p10` VALUES LESS THAN (10), PARTITION `p20` VALUES"
        " LESS THAN (20))"
    )
    item = story.create(
        table(11, "item", ID, V, primary="id", partition=partitioned(1, "`id`", *parts)),
        f"CREATE TABLE `item` (`id` int primary key, `v` int) {by_id}",
    )
    story.insert(item, {"id": 15, "v": 1})
    at = story._ts
    story.insert(item, {"id": 1, "v": 1}, {"id": 11, "v": 1})
    left = replace(item, partition=partitioned(1, "`id`", parts[1]))
    story.statement(DROP_PARTITION, "ALTER TABLE `item` DROP PARTITION `p10`", left)
    story.insert(left, {"id": 12, "v": 1})
    done = ["INSERT INTO d.item VALUES (11, 1)", "ALTER TABLE d.item DROP PARTITION p10"]
    finish(story, left_by_a_drainer(story, at, *done))
    assert story.rows("item") == [(11, 1), (12, 1), (15, 1)]

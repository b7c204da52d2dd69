"""Several DDL statements between a Drainer's checkpoint and the place where it broke off, wherever
that is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.apply.run import ApplyError
from sluice.etl.downstream.ddl import DdlError
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.relay import Control
from sluice.tidb.schema import Index, Schema
from tests.etl.apply.test_safe_mode import forget, leave_checkpoint
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, column, table

ADD_COLUMN, DROP_COLUMN, DROP_TABLE, TRUNCATE_TABLE = 5, 6, 4, 11
PAIRS = [
    (0, 9),
    (0, 12),
    (1, 2),
    (1, 5),
    (1, 11),
    (3, 9),
    (4, 12),
    (5, 8),
    (5, 11),
    (6, 9),
    (7, 12),
    (8, 11),
]
"""Checkpoints and how far the Drainer had come, as numbers of steps."""
ID, V = column(1, "id int"), column(2, "v int")
OTHER = table(30, "other", "id int", "v int", primary="id")
LOG = table(31, "log", "a int", "b int")


def tell(story: Story) -> list[int]:
    """Tables come, go, come back under the same name, and get columns that they lose again.

    After each step its commit_ts.
    """
    marks = [story._ts]

    def done() -> None:
        marks.append(story._ts)

    first = story.create(
        table(11, "item", ID, V, primary="id"),
        "CREATE TABLE `item` (`id` int primary key, `v` int)",
    )
    done()
    story.insert(first, {"id": 1, "v": 1}, {"id": 2, "v": 2})
    story.insert(OTHER, {"id": 1, "v": 1})
    done()
    story.statement(DROP_TABLE, "DROP TABLE `item`", 11, name="item")
    done()
    story.insert(OTHER, {"id": 2, "v": 2})
    story.insert(LOG, {"a": 1, "b": 1})
    done()
    again = story.create(
        table(12, "item", ID, V, primary="id"),
        "CREATE TABLE `item` (`id` int primary key, `v` int)",
    )
    done()
    story.insert(again, {"id": 2, "v": 20}, {"id": 3, "v": 30})
    done()
    wider = table(12, "item", ID, V, column(3, "x int"), primary="id")
    story.statement(ADD_COLUMN, "ALTER TABLE `item` ADD COLUMN `x` int", wider)
    done()
    story.insert(wider, {"id": 4, "v": 40, "x": 4})
    done()
    other = table(12, "item", ID, column(3, "x int"), primary="id")
    story.statement(DROP_COLUMN, "ALTER TABLE `item` DROP COLUMN `v`", other)
    done()
    story.insert(other, {"id": 5, "x": 5})
    done()
    last = table(12, "item", ID, primary="id")
    story.statement(DROP_COLUMN, "ALTER TABLE `item` DROP COLUMN `x`", last)
    done()
    story.insert(last, {"id": 6})
    story.delete(OTHER, {"id": 1, "v": 1})
    done()
    return marks


@pytest.mark.slow
def test_it_goes_on_from_wherever_the_drainer_broke_off(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(OTHER, "CREATE TABLE `other` (`id` int primary key, `v` int)")
    story.create(LOG, "CREATE TABLE `log` (`a` int, `b` int)")
    marks = tell(story)
    settings = Settings(Upstream("unused"), Relay(story._url), mariadb.downstream)
    bad, refused = [], []
    for checkpoint, reached in PAIRS:
        mariadb.empty()
        forget(story._url)
        story._relay.change_control(lambda _: Control())
        run_apply(
            settings, until_ts=marks[reached], run_seconds=240, prepare=local_preparer(settings)
        )
        with mariadb.connect() as connection:
            connection.cursor().execute("DROP DATABASE IF EXISTS sluice_recycle")
            leave_checkpoint(connection, marks[checkpoint], sluice={"safe-until": marks[reached]})
        forget(story._url)
        try:
            run_apply(
                settings, until_ts=marks[-1], run_seconds=240, prepare=local_preparer(settings)
            )
            found = story.rows("item"), story.rows("other"), story.rows("log")
            if found != ([(i,) for i in (2, 3, 4, 5, 6)], [(2, 2)], [(1, 1)]):
                bad.append(f"{checkpoint} to {reached}: {found}")
        except (ApplyError, DdlError) as error:
            if "d.log has no key" in str(error):
                refused.append((checkpoint, reached))
                continue
            bad.append(f"{checkpoint} to {reached}: {type(error).__name__} {error!s:.250}")
    assert refused == [(1, 5)], (
        "dropped and made again: nothing tells whether it was, nor whose rows are in a table"
        " without a key"
    )
    assert not bad, "\n".join(bad)


def broke_off(story: Story, at: int, reached: int) -> None:
    """The Drainer has applied everything through `reached`, and its checkpoint is at `at`."""
    settings = Settings(Upstream("unused"), Relay(story._url), story.server.downstream)
    run_apply(settings, until_ts=reached, run_seconds=240, prepare=local_preparer(settings))
    with story.server.connect() as connection:
        connection.cursor().execute("DROP DATABASE IF EXISTS sluice_recycle")  # it keeps nothing
        leave_checkpoint(connection, at, sluice={"safe-until": reached})
    forget(story._url)


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    story = Story(mariadb, tmp_path)
    story.create(OTHER, "CREATE TABLE `other` (`id` int primary key, `v` int)")
    story.insert(OTHER, {"id": 1, "v": 1})
    return story


def test_rows_behind_a_ddl_that_has_run_keep_what_the_drainer_wrote(story: Story) -> None:
    """A later DDL says that all before it is there: nothing before it is done again, nor made as it
    was right after that.
    """
    at = story._ts
    made = column(
        3, "made datetime", default="2020-01-01 00:00:00", origin_default="2020-01-01 00:00:00"
    )
    wide = table(30, "other", "id int", "v int", made, primary="id")
    story.statement(
        ADD_COLUMN,
        "ALTER TABLE `other` ADD COLUMN `made` datetime DEFAULT '2020-01-01 00:00:00'",
        wide,
    )
    story.insert(wide, {"id": 2, "v": 2, "made": "2026-01-01 00:00:00"})
    emptied = table(32, "other", "id int", "v int", made, primary="id")
    story.create(
        table(40, "one", "id int", primary="id"), "CREATE TABLE `one` (`id` int primary key)"
    )
    reached = story._ts
    broke_off(story, at, reached)
    story.apply()
    assert [str(row[2]) for row in story.rows("other")] == [
        "2020-01-01 00:00:00",
        "2026-01-01 00:00:00",
    ]
    at = story._ts
    story.statement(TRUNCATE_TABLE, "TRUNCATE TABLE `other`", 30, emptied)
    story.insert(emptied, {"id": 3, "v": 3, "made": "2026-01-01 00:00:00"})
    story.create(
        table(41, "two", "id int", primary="id"), "CREATE TABLE `two` (`id` int primary key)"
    )
    broke_off(story, at, story._ts)
    story.apply()
    assert [row[:2] for row in story.rows("other")] == [(3, 3)]


def test_a_database_that_was_dropped_and_made_again_stays(story: Story) -> None:
    at = story._ts
    story.statement(2, "DROP DATABASE `d`", 30, schemas={1: None})
    story.statement(1, "CREATE DATABASE `d`", schemas={2: Schema(2, "d", "utf8mb4", "utf8mb4_bin")})
    again = story.create(
        table(33, "item", "id int", "v int", primary="id"),
        "CREATE TABLE `item` (`id` int primary key, `v` int)",
    )
    story.insert(again, {"id": 5, "v": 5})
    story.create(
        table(41, "two", "id int", primary="id"), "CREATE TABLE `two` (`id` int primary key)"
    )
    broke_off(story, at, story._ts)
    story.apply()
    assert story.rows("item") == [(5, 5)]


def test_an_index_that_somebody_built_ahead_is_no_proof_that_what_comes_before_it_is_there(
    story: Story,
) -> None:
    at = story._ts
    story.apply()
    story.insert(OTHER, {"id": 2, "v": 2})
    story.insert(OTHER, {"id": 3, "v": 3})
    indexed = replace(OTHER, indexes=(*OTHER.indexes, Index(9, "v", (("v", 1, -1),))))
    story.statement(7, "ALTER TABLE `other` ADD INDEX `v` (`v`)", indexed)
    with story.server.connect() as connection:
        connection.cursor().execute("ALTER TABLE d.other ADD INDEX v (v)")
        leave_checkpoint(connection, at, sluice={"safe-until": story._ts})
    forget(story._url)
    story.apply()
    assert story.rows("other") == [(1, 1), (2, 2), (3, 3)]


def test_capitals_in_names_are_looked_up_as_they_are(story: Story) -> None:
    big = story.create(
        table(50, "Item", "id int", "v int", primary="id"),
        "CREATE TABLE `Item` (`id` int primary key, `v` int)",
    )
    story.insert(big, {"id": 1, "v": 1})
    story.apply()
    at = story._ts
    story.update(OTHER, {"id": 1, "v": 1}, {"v": 2})
    story.statement(DROP_TABLE, "DROP TABLE `Item`", 50, name="item")
    with story.server.connect() as connection:
        leave_checkpoint(connection, at, sluice={"safe-until": story._ts})
    forget(story._url)
    story.apply()
    assert story.rows("other") == [(1, 2)]
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES FROM d")
        assert cursor.fetchall() == (("other",),)


def test_a_swap_that_the_drainer_may_have_run_is_not_run_again(story: Story) -> None:
    one = story.create(
        table(20, "one", "id int", "v int", primary="id"),
        "CREATE TABLE `one` (`id` int primary key, `v` int)",
    )
    two = story.create(
        table(21, "two", "id int", "v int", primary="id"),
        "CREATE TABLE `two` (`id` int primary key, `v` int)",
    )
    story.insert(one, {"id": 1, "v": 1})
    story.insert(two, {"id": 2, "v": 2})
    at = story._ts
    story.statement(
        47,
        "RENAME TABLE `one` TO `t`, `two` TO `one`, `t` TO `two`",
        replace(one, name="two"),
        replace(two, name="one"),
    )
    broke_off(story, at, story._ts)
    with pytest.raises(DdlError, match="a second time would undo it"):
        story.apply()
    assert (story.rows("one"), story.rows("two")) == ([(2, 2)], [(1, 1)])

"""A column that a Drainer gave another type before it broke off keeps its values: the change isn't
made twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.downstream.ddl import DdlError
from sluice.tidb.schema import Index
from tests.etl.apply.test_safe_mode import forget, leave_checkpoint
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table

NOTE = table(12, "note", "id int", "v datetime", primary="id")
CREATE = "CREATE TABLE `note` (`id` int PRIMARY KEY, `v` datetime)"
MODIFY = "ALTER TABLE `note` MODIFY COLUMN `v` bigint"
CHANGED = replace(NOTE, columns=(NOTE.columns[0], replace(column(3, "v bigint"), offset=1)))
MOMENT = {"id": 1, "v": "2020-02-03 04:05:06"}


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Iterator[Story]:
    story = Story(mariadb, tmp_path)
    story.create(NOTE, CREATE)
    story.insert(NOTE, dict(MOMENT))
    story.apply()
    yield story


def execute(story: Story, *statements: str) -> None:
    with story.server.connect(database="d") as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def broke_off(story: Story, at_ts: int) -> None:
    with story.server.connect() as connection:
        leave_checkpoint(connection, at_ts, sluice={"safe-until": story._ts})
    forget(story.url)


@pytest.mark.parametrize("ran", [True, False])
def test_a_type_that_a_drainer_changed_before_it_broke_off_is_not_changed_again(
    story: Story, ran: bool
) -> None:
    before = story._ts
    story.insert(NOTE, {"id": 2, "v": "2021-02-03 04:05:06"})
    story.statement(12, MODIFY, CHANGED)
    story.insert(CHANGED, {"id": 3, "v": 7})
    execute(story, "INSERT INTO note VALUES (2, '2021-02-03 04:05:06')", *([MODIFY] if ran else []))
    broke_off(story, before)
    story.apply()
    assert story.rows("note") == [(1, 20200203040506), (2, 20210203040506), (3, 7)]


@pytest.mark.parametrize("ran", [True, False])
def test_a_type_changed_and_changed_back_ends_as_upstream(story: Story, ran: bool) -> None:
    before = story._ts
    back = replace(NOTE, columns=(NOTE.columns[0], replace(column(4, "v datetime"), offset=1)))
    story.statement(12, MODIFY, CHANGED)
    story.statement(12, MODIFY.replace("bigint", "datetime"), back)
    execute(story, *([MODIFY] if ran else []))
    broke_off(story, before)
    story.apply()
    assert story.rows("note", "`id`, CAST(`v` AS CHAR)") == [(1, "2020-02-03 04:05:06")]


def test_a_changed_type_that_may_be_a_drainers_stops_by_name_before_its_values_are_changed_twice(
    story: Story,
) -> None:
    """The downstream lacks the index, so that it looks as after none of the statements."""
    before = story._ts
    index = Index(9, "i", (("id", 0, -1),))
    story.statement(
        7, "ALTER TABLE `note` ADD INDEX `i` (`id`)", replace(NOTE, indexes=(*NOTE.indexes, index))
    )
    story.statement(12, MODIFY, replace(CHANGED, indexes=(*NOTE.indexes, index)))
    execute(story, MODIFY)
    broke_off(story, before)
    with pytest.raises(
        DdlError, match=r"change the values of d\.note\.v from DATETIME to BIGINT twice.*commitTS"
    ):
        story.apply()
    assert story.rows("note") == [(1, 20200203040506)]

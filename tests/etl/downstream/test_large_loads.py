"""Loads that take several statements: each is held to its own numbers."""

from __future__ import annotations

from pathlib import Path

from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, table


def test_a_warning_that_one_statement_expects_is_not_expected_of_the_next(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    """ENUM's index 0 is stored with a warning; the rows of the next statement have none."""
    story = Story(mariadb, tmp_path)
    made = story.create(
        table(11, "big", "id int", "e enum('a')", "t longtext", primary="id"),
        "CREATE TABLE `big` (`id` int primary key, `e` enum('a'), `t` longtext)",
    )
    story.insert(
        made, *({"id": i, "e": "" if i == 1 else "a", "t": "x" * (3 << 20)} for i in (1, 2, 3))
    )
    story.apply()
    assert story.rows("big", "id, e, length(t)") == [
        (1, "", 3 << 20),
        (2, "a", 3 << 20),
        (3, "a", 3 << 20),
    ]

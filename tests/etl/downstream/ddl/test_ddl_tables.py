"""What a statement says of a table as a whole: options, foreign keys, views, sequences, partitions
the server doesn't take.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.ddl import DdlError
from sluice.tidb.schema import Index, Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, partitioned, table


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return Story(mariadb, tmp_path)


def ask(story: Story, query: str) -> list[tuple[Any, ...]]:
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def key(number: int, name: str, column: str, target: str, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "fk_name": {"O": name},
        "cols": [{"O": column}],
        "ref_schema": {"O": "d"},
        "ref_table": {"O": target},
        "ref_cols": [{"O": "id"}],
        **more,
    }


def test_options_are_those_of_the_table_whatever_the_text_repeats(story: Story) -> None:
    text = (
        "CREATE TABLE `t` (`id` INT PRIMARY KEY) DEFAULT CHARACTER SET = UTF8MB4 DEFAULT COLLATE ="
        " UTF8MB4_GENERAL_CI"
    )
    old = story.create(
        replace(table(10, "t", "id int", primary="id"), collate="utf8mb4_general_ci"), text
    )
    new = replace(old, collate="utf8mb4_bin", comment="it's \\ %s", auto_increment=100)
    story.statement(17, "ALTER TABLE `t` COMMENT = …", new)
    story.apply()
    assert ask(
        story,
        "SELECT table_collation, table_comment FROM information_schema.tables WHERE table_name"
        " = 't'",
    ) == [("utf8mb4_bin", "it's \\ %s")]


def test_foreign_keys_come_and_go_and_rows_are_never_checked(story: Story) -> None:
    for number, name in ((10, "p"), (11, "c%s")):
        story.create(table(number, name, "id int", "pid int", primary="id"), "CREATE TABLE …")
    child = table(11, "c%s", "id int", "pid int", primary="id")
    keyed = replace(
        child,
        indexes=(Index(2, "i", (("pid", 1, -1),)),),
        foreign_keys=(key(1, "f'k", "pid", "p", on_delete=2, on_update=3),),
    )
    story.statement(61, "ALTER TABLE `c%s` ADD INDEX …, ADD CONSTRAINT …", keyed)
    story.insert(keyed, {"id": 1, "pid": 99})
    story.apply()
    found = (
        "SELECT CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE FROM"
        " information_schema.REFERENTIAL_CONSTRAINTS"
    )
    assert ask(story, found) == [("f'k", "CASCADE", "SET NULL")]
    story.statement(10, "ALTER TABLE `c%s` DROP FOREIGN KEY …", replace(keyed, foreign_keys=()))
    refused = replace(
        keyed, foreign_keys=(key(2, "bad", "pid", "p") | {"ref_cols": [{"O": "pid"}]},)
    )
    story.statement(9, "ALTER TABLE `c%s` ADD CONSTRAINT …", refused)
    story.insert(refused, {"id": 2, "pid": 1})
    assert any("foreign keys of d.c%s left out" in warning for warning in story.apply().warnings)
    assert ask(story, found) == []
    assert story.rows("c%s") == [(1, 99), (2, 1)]


def test_a_view_means_the_tables_it_meant_whatever_database_a_session_was_in(story: Story) -> None:
    t = story.create(
        table(10, "t", "id int", "v int", primary="id"), "CREATE TABLE `t` (`id` INT PRIMARY KEY)"
    )
    story.insert(t, {"id": 1, "v": 2})
    seen = table(
        11,
        "v\"'`%",
        "i int",
        is_view=True,
        view={
            "view_select": "SELECT `d`.`t`.`v` AS `v` FROM `d`.`t` WHERE `id`>0",
            "view_security": 1,
        },
    )
    story.statement(21, "CREATE VIEW v AS SELECT v FROM t WHERE id>0", seen)
    assert story.apply().warnings == []
    assert story.rows("v\"'`%") == [(2,)]
    story.statement(
        21,
        "CREATE OR REPLACE VIEW …",
        11,
        replace(seen, id=12, view={"view_select": "SELECT VITESS_HASH(`v`) AS `v` FROM `d`.`t`"}),
    )
    assert any("left out" in warning for warning in story.apply().warnings)


def test_sequences_are_made_as_they_are(story: Story) -> None:
    info = {
        "sequence_start": 5,
        "sequence_cache": True,
        "sequence_cycle": False,
        "sequence_min_value": 1,
        "sequence_max_value": 1000,
        "sequence_increment": 3,
        "sequence_cache_value": 10,
    }
    made = table(11, "s q", is_sequence=True, sequence=info)
    story.statement(34, "CREATE SEQUENCE …", made)
    story.statement(
        35,
        "ALTER SEQUENCE …",
        replace(made, sequence=info | {"sequence_increment": 4, "sequence_cache": False}),
    )
    warnings = story.apply().warnings
    if story.server.dialect.has_sequences:
        assert warnings == []
        assert ask(story, "SELECT minimum_value, increment FROM `d`.`s q`") == [(1, 4)]
    else:
        assert len(warnings) == 2 and all(
            "this server has no sequences" in line for line in warnings
        )


def ranged(number: int, *bounds: tuple[int, str, str], unique: tuple[str, ...] = ("v",)) -> Table:
    return table(
        number, "t", "p int", "v int", unique=unique, partition=partitioned(1, "`p`", *bounds)
    )


def test_partitions_of_a_table_that_has_none_downstream_come_and_go_with_their_rows(
    story: Story,
) -> None:
    """A global index: unique over all partitions, which the server doesn't know."""
    bounds = [(21, "p0", "10"), (22, "p1", "20"), (23, "p'2", "MAXVALUE")]
    old = story.create(ranged(10, *bounds[:2]), "CREATE TABLE …")
    story.insert(old, *({"p": p, "v": n} for n, p in enumerate((None, 1, 9, 10, 19))))
    assert any("without its partitions" in warning for warning in story.apply().warnings)
    more = ranged(10, *bounds)
    story.statement(19, "ALTER TABLE `t` ADD PARTITION …", more)
    story.insert(more, {"p": 20, "v": 5}, {"p": 99, "v": 6})
    emptied = ranged(10, bounds[0], (32, "p1", "20"), bounds[2])
    story.statement(23, "ALTER TABLE `t` TRUNCATE PARTITION `p1`", emptied)
    story.insert(emptied, {"p": 12, "v": 7})
    story.statement(
        20, "ALTER TABLE `t` DROP PARTITION `p0`", ranged(10, (32, "p1", "20"), bounds[2])
    )
    story.apply()
    assert story.rows("t", "p, v") == [(12, 7), (20, 5), (99, 6)]


def test_a_unique_key_over_all_partitions_takes_the_partitions_away(story: Story) -> None:
    bounds = [(21, "p0", "10"), (22, "p1", "MAXVALUE")]
    old = story.create(ranged(10, *bounds, unique=()), "CREATE TABLE …")
    story.insert(old, {"p": 1, "v": 1}, {"p": 11, "v": 2})
    new = ranged(10, *bounds)
    story.statement(7, "ALTER TABLE `t` ADD UNIQUE INDEX `u2` (`v`) GLOBAL", new)
    summary = story.apply()
    assert any("without its partitions" in warning for warning in summary.warnings)
    story.statement(20, "ALTER TABLE `t` DROP PARTITION `p0`", ranged(10, bounds[1]))
    story.apply()
    assert story.rows("t", "p, v") == [(11, 2)]


def test_a_partition_whose_rows_no_condition_tells_stops_by_name(story: Story) -> None:
    parts = [{"id": 21 + n, "name": {"O": f"p{n}", "L": f"p{n}"}} for n in range(2)]
    info = {"type": 2, "expr": "`p`", "enable": True, "definitions": parts, "num": 2}
    old = story.create(
        table(10, "t", "p int", "v int", unique=("v",), partition=info), "CREATE TABLE …"
    )
    story.statement(
        23,
        "ALTER TABLE `t` TRUNCATE PARTITION `p0`",
        replace(old, partition=info | {"definitions": [parts[0] | {"id": 30}, parts[1]]}),
    )
    with pytest.raises(DdlError, match=r"partition of d\.t can't be selected"):
        story.apply()


def may_turn_off_strict_mode(story: Story) -> bool:
    """In MySQL only with a right that isn't asked for."""
    with contextlib.closing(MySQLSession(story.server.downstream)) as session:
        session.connect()
        try:
            session.query("SET SESSION innodb_strict_mode = OFF")
        except DownstreamError:
            return False
        return True


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize(
    ("count", "spec"),
    [(120, "varchar(50)"), (60, "char(60)"), (300, "varchar(20)"), (700, "varchar(100)")],
)
def test_rows_too_wide_for_a_page_by_their_definition_are_kept_whole(
    story: Story, count: int, spec: str
) -> None:
    wide = story.create(
        table(10, "t", "id int", *(f"c{n} {spec}" for n in range(count)), primary="id"),
        "CREATE TABLE …",
    )
    row = {"id": 1} | {f"c{n}": "日本" for n in range(count)}
    story.insert(wide, row)
    strict = not may_turn_off_strict_mode(story)
    if strict and count > 200:
        with pytest.raises(DdlError, match=r"Row size too large.*grant it SESSION_VARIABLES_ADMIN"):
            story.apply()
        ask(story, "GRANT SESSION_VARIABLES_ADMIN ON *.* TO sluice")
    warnings = story.apply().warnings
    # MySQL counts 40 bytes of a column that is longer: there the first two are taken as they are.
    assert any("made TEXT or BLOB" in warning for warning in warnings) == (
        count > 200 or not strict
    )
    last = wide.columns[-1]
    renamed = replace(
        wide, columns=(*wide.columns[:-1], replace(last, name="x", flen=last.flen + 1))
    )
    story.statement(12, "ALTER TABLE `t` CHANGE COLUMN …", renamed)
    story.insert(renamed, {"id": 2} | {c.name: "b" for c in renamed.columns[1:]})
    story.apply()
    assert story.rows("t", "id, c0, x") == [(1, "日本", "日本"), (2, "b", "b")]
    if strict and count > 200:
        ask(story, "REVOKE SESSION_VARIABLES_ADMIN ON *.* FROM sluice")

"""ENUM and SET elements that end with blanks, which TiDB kept until 2020 and servers cut off in a
definition.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.apply.run import ApplyError
from sluice.etl.downstream.ddl import DdlError
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Row, Story, column, table, wider


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return Story(mariadb, tmp_path)


def hexed(story: Story, name: str, at: str) -> list[bytes]:
    return sorted(bytes.fromhex(digits) for (digits,) in story.rows(name, f"HEX(`{at}`)"))


@pytest.mark.quick_cases(every=4)
@pytest.mark.parametrize(
    "primary", ["id", "v", ""], ids=["with a key", "in the key", "without a key"]
)
@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("enum('a ','b')", ["a ", "b"]),
        ("enum('a','a ','')", ["a", "a ", ""]),
        ("enum('b','é ')", ["b", "é ", ""]),  # the last is TiDB's index 0
        ("set('x ','y')", ["x ,y", "", "x ", "y"]),
        ("set('x','x ') collate utf8mb4_general_ci", ["x,x ", "x", "x "]),
        ("enum('中 ','x') character set gbk", ["中 ", "x"]),
        ("enum('a ','a') character set latin1", ["a ", "a"]),
    ],
)
def test_elements_with_trailing_blanks_come_and_go(
    story: Story, spec: str, values: list[str], primary: str
) -> None:
    made = story.create(table(10, "t", "id int", f"v {spec}", primary=primary), "")
    rows: list[Row] = [{"id": n, "v": value} for n, value in enumerate(values)]
    story.insert(made, *rows)
    summary = story.apply()
    assert hexed(story, "t", "v") == sorted(value.encode() for value in values)
    assert [w for w in summary.warnings if "column v of d.t has the character set binary" in w], (
        summary.warnings
    )
    if primary != "v":
        rows[0] = story.update(made, rows[0], {"v": values[-1]})
    story.delete(made, *rows)
    story.apply()
    assert story.rows("t") == []


def test_a_column_with_such_elements_that_is_added_fills_the_rows_that_are_there(
    story: Story,
) -> None:
    old = story.create(table(10, "t", "id int", primary="id"), "")
    story.insert(old, {"id": 1})
    story.statement(5, "", wider(old, column(2, "e enum('a ','b') not null", origin_default="a ")))
    story.apply()
    assert hexed(story, "t", "e") == [b"a "]


def test_a_changed_type_reads_such_elements_as_they_are(story: Story) -> None:
    old = story.create(
        table(10, "t", "id int", "e enum('a ','b','a')", "s set('x ','y')", primary="id"), ""
    )
    story.insert(
        old,
        {"id": 1, "e": "a ", "s": "x ,y"},
        {"id": 2, "e": "a", "s": "y"},
        {"id": 3, "e": "b", "s": ""},
    )
    number, text = column(4, "e int"), column(5, "s varchar(10)")
    new = replace(old, columns=(old.columns[0], replace(number, offset=1), replace(text, offset=2)))
    story.statement(12, "ALTER TABLE `t` MODIFY `e` INT, MODIFY `s` VARCHAR(10)", new)
    story.apply()
    assert story.rows("t") == [(1, 1, "x ,y"), (2, 3, "y"), (3, 2, "")]


@pytest.mark.parametrize("at", ["rows", "statement"])
def test_a_table_that_has_lost_the_blanks_stops_with_the_statements_that_mend_it(
    story: Story, mariadb: MariaDBServer, at: str
) -> None:
    made = story.create(
        table(10, "t", "id int", "e enum('a ','b') not null", "s set('x','y ')", primary="id"), ""
    )
    story.insert(made, {"id": 1, "e": "a ", "s": "x,y "})
    story.apply()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE d.t MODIFY e BIGINT NOT NULL, MODIFY s BIGINT")
        cursor.execute("ALTER TABLE d.t MODIFY e ENUM('a ', 'b') NOT NULL, MODIFY s SET('x', 'y ')")
    if at == "rows":
        story.insert(made, {"id": 2, "e": "b", "s": None})
    else:
        story.statement(5, "", wider(made, column(4, "c int")))
    with pytest.raises((ApplyError, DdlError), match=r"d\.t.*cut off the blanks") as error:
        story.apply()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        for statement in re.findall(r"ALTER TABLE [^;]*", str(error.value)):
            cursor.execute(statement)
    story.delete(made, {"id": 1, "e": "a ", "s": "x,y "})
    story.apply()
    assert [row[:3] for row in story.rows("t")] == ([(2, b"b", None)] if at == "rows" else [])

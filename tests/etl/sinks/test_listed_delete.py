"""Many rows without a key, removed by one step: exactly so many of each, or the step is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from etl.downstream import MySQLSession
from etl.formats.sql_text import row_conditions
from etl.shapes._rows_by_value import DeletedRows
from etl.sinks import _listed_delete
from etl.sinks.sink import ApplyError
from etl.sinks.step_writer import StepWriter
from etl.steps import DeleteDetail, Step
from tests.etl.story import table

TABLE = table(1, "t", "a int", "t varchar(20)")
PLAIN = "CREATE TABLE d.t (a int, t varchar(20) COLLATE utf8mb4_general_ci)"
INDEXED = "CREATE TABLE d.t (a int, t varchar(20) COLLATE utf8mb4_general_ci, KEY (a), KEY (t))"
MORE_COLUMNS = "CREATE TABLE d.t (own int DEFAULT 5, a int, t varchar(20) COLLATE utf8mb4_general_ci)"

Rows = Sequence[tuple[Any, ...]]


def steps(wanted: Rows, *, lenient: bool = False) -> Iterator[Step]:
    """The steps that remove these rows."""
    each = Counter(wanted)
    images = {
        column.name: pa.array([row[n] for row in each], kind)
        for n, (column, kind) in enumerate(zip(TABLE.columns, (pa.int64(), pa.large_string()), strict=True))
    }
    conditions = row_conditions(TABLE.columns, list(images.values())).to_pylist()
    for count, payload, listed in DeletedRows(TABLE, conditions, list(each.values()), images).listed():
        yield Step(DeleteDetail(90, lenient, listed=listed), 100, "d", "t", count, 0, payload)


def there(session: MySQLSession, create: str, rows: Rows) -> None:
    for statement in ("CREATE DATABASE d", create):
        session.query(statement)
    for row in rows:
        session.query("INSERT INTO d.t (a, t) VALUES (%s, %s)", row)
    session.query("COMMIT")
    session.query("BEGIN")


def left(session: MySQLSession) -> list[tuple[Any, ...]]:
    return sorted(session.query("SELECT a, t FROM d.t"), key=repr)


@pytest.mark.parametrize("create", [PLAIN, INDEXED, MORE_COLUMNS], ids=["plain", "indexed", "more-columns"])
def test_of_equal_rows_as_many_go_as_are_wanted_and_no_other(session: MySQLSession, create: str) -> None:
    others = [(n, "x") for n in range(30)] + [(1, "A"), (1, "a "), (None, None), (None, "a")]
    gone = [(1, "a"), (1, "a"), (2, None), (None, None), (5, "x"), (5, "é"), (6, "é")]
    there(session, create, [*others, *gone])
    for step in steps(gone):
        StepWriter(session).write(step)
    assert left(session) == sorted(others, key=repr)


def test_rows_that_are_there_once_each_go_in_one_statement(
    session: MySQLSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(n, "x") for n in range(50)]
    there(session, PLAIN, [*rows, (7, "X")])
    (step,) = steps(rows)
    monkeypatch.setattr(_listed_delete, "statements_of", lambda _: [])
    StepWriter(session).write(step)
    assert left(session) == [(7, "X")]


def test_one_row_too_many_doesnt_stand_for_another_that_is_missing(session: MySQLSession) -> None:
    """As many rows as are wanted are equal to one of them."""
    there(session, PLAIN, [(1, "a"), (1, "a"), (3, "c")])
    (step,) = steps([(1, "a"), (2, "b"), (3, "c")])
    with pytest.raises(ApplyError, match=r"2 rows of the 3 to be removed were there.*missing: `a`<=>2"):
        StepWriter(session).write(step)
    session.query("ROLLBACK")
    assert left(session) == [(1, "a"), (1, "a"), (3, "c")]


def test_where_rows_may_be_missing_those_that_are_there_go(session: MySQLSession) -> None:
    there(session, PLAIN, [(1, "a"), (1, "a"), (3, "c")])
    for step in steps([(1, "a"), (2, "b"), (3, "c"), (3, "c")], lenient=True):
        StepWriter(session).write(step)
    assert left(session) == [(1, "a")]


@pytest.mark.parametrize(
    "create",
    [
        "CREATE TABLE d.t (a int, t varchar(20) AS (CONCAT('x', a)) VIRTUAL)",
        "CREATE TABLE d.t (a tinyint, t varchar(20))",
    ],
    ids=["computed", "too-narrow"],
)
def test_what_cant_be_listed_is_removed_by_a_statement_each(session: MySQLSession, create: str) -> None:
    for statement in ("CREATE DATABASE d", create, "INSERT INTO d.t (a) VALUES (1), (2)", "COMMIT", "BEGIN"):
        session.query(statement)
    session.query("UPDATE d.t SET t = 'x2' WHERE a = 2" if "tiny" in create else "DO 1")
    for step in steps([(2, "x2"), (300, "x")], lenient=True):
        StepWriter(session).write(step)
    assert [row[0] for row in left(session)] == [1]

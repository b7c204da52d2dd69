"""Many rows without a key, removed by one step: exactly so many of each, or the step is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from sluice.etl.changes.formats.sql_columns import row_conditions
from sluice.etl.changes.steps import DeleteDetail, Step
from sluice.etl.changes.write_plans._keyless_deletes import KeylessDeletes
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.sinks import _keyless_delete as _listed_delete
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.etl.downstream.sinks.write_executor import WriteExecutor
from sluice.tidb.schema import Table
from tests.etl.story import table

TABLE = table(1, "t", "a int", "t varchar(20)")
PLAIN = "CREATE TABLE d.t (a int, t varchar(20) COLLATE utf8mb4_general_ci)"
INDEXED = "CREATE TABLE d.t (a int, t varchar(20) COLLATE utf8mb4_general_ci, KEY (a), KEY (t))"
MORE_COLUMNS = (
    "CREATE TABLE d.t (own int DEFAULT 5, a int, t varchar(20) COLLATE utf8mb4_general_ci)"
)

Rows = Sequence[tuple[Any, ...]]


def steps(wanted: Rows, *, lenient: bool = False, of: Table = TABLE) -> Iterator[Step]:
    """The steps that remove these rows."""
    each = Counter(wanted)
    kinds = {"int": pa.int64(), "double": pa.float64()}
    images = {
        column.name: pa.array([row[n] for row in each], kinds.get(column.kind, pa.large_string()))
        for n, column in enumerate(of.columns)
    }
    conditions = row_conditions(of.columns, list(images.values())).to_pylist()
    for count, payload, listed in KeylessDeletes(
        of, conditions, list(each.values()), images
    ).listed():
        yield Step(DeleteDetail(90, lenient, listed=listed), 100, "d", "t", count, 0, payload)


def there(session: MySQLSession, create: str, rows: Rows) -> None:
    for statement in ("CREATE DATABASE d", create):
        session.query(statement)
    for row in rows:
        session.query("INSERT INTO d.t (a, t) VALUES (%s, %s)", row)
    session.query("COMMIT")
    session.query("BEGIN")


def written(session: MySQLSession, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that write from now on."""
    found: list[str] = []
    execute = session.execute

    def noted(statement: str | bytes) -> int:
        found.append(statement if isinstance(statement, str) else statement.decode())
        return execute(statement)

    monkeypatch.setattr(session, "execute", noted)
    return found


def left(session: MySQLSession) -> list[tuple[Any, ...]]:
    return sorted(session.query("SELECT a, t FROM d.t"), key=repr)


@pytest.mark.parametrize(
    "create", [PLAIN, INDEXED, MORE_COLUMNS], ids=["plain", "indexed", "more-columns"]
)
def test_of_equal_rows_as_many_go_as_are_wanted_and_no_other(
    session: MySQLSession, create: str
) -> None:
    others = [(n, "x") for n in range(30)] + [(1, "A"), (1, "a "), (None, None), (None, "a")]
    gone = [(1, "a"), (1, "a"), (2, None), (None, None), (5, "x"), (5, "é"), (6, "é")]
    there(session, create, [*others, *gone])
    for step in steps(gone):
        WriteExecutor(session).write(step)
    assert left(session) == sorted(others, key=repr)


def test_rows_that_are_there_once_each_go_in_one_statement(
    session: MySQLSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(n, "x") for n in range(50)]
    there(session, PLAIN, [*rows, (7, "X")])
    (step,) = steps(rows)
    monkeypatch.setattr(_listed_delete, "statements_of", lambda _: [])
    WriteExecutor(session).write(step)
    assert left(session) == [(7, "X")]


def test_one_row_too_many_doesnt_stand_for_another_that_is_missing(session: MySQLSession) -> None:
    """As many rows as are wanted are equal to one of them."""
    there(session, PLAIN, [(1, "a"), (1, "a"), (3, "c")])
    (step,) = steps([(1, "a"), (2, "b"), (3, "c")])
    with pytest.raises(ApplyError, match=r"2 of 3 rows to be removed were there.*missing: `a`<=>2"):
        WriteExecutor(session).write(step)
    session.query("ROLLBACK")
    assert left(session) == [(1, "a"), (1, "a"), (3, "c")]


def test_where_rows_may_be_missing_those_that_are_there_go(session: MySQLSession) -> None:
    there(session, PLAIN, [(1, "a"), (1, "a"), (3, "c")])
    for step in steps([(1, "a"), (2, "b"), (3, "c"), (3, "c")], lenient=True):
        WriteExecutor(session).write(step)
    assert left(session) == [(1, "a")]


@pytest.mark.parametrize(
    "create",
    [
        "CREATE TABLE d.t (a int, t varchar(20) AS (CONCAT('x', a)) VIRTUAL)",
        "CREATE TABLE d.t (a tinyint, t varchar(20))",
    ],
    ids=["computed", "too-narrow"],
)
def test_what_cant_be_listed_is_removed_by_a_statement_each(
    session: MySQLSession, create: str
) -> None:
    for statement in (
        "CREATE DATABASE d",
        create,
        "INSERT INTO d.t (a) VALUES (1), (2)",
        "COMMIT",
        "BEGIN",
    ):
        session.query(statement)
    session.query("UPDATE d.t SET t = 'x2' WHERE a = 2" if "tiny" in create else "DO 1")
    for step in steps([(2, "x2"), (300, "x")], lenient=True):
        WriteExecutor(session).write(step)
    assert [row[0] for row in left(session)] == [1]


def test_the_tables_are_compared_once_though_some_rows_are_there_too_often(
    session: MySQLSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [(n, "x") for n in range(60)]
    there(session, PLAIN, [*wanted, (7, "x"), (23, "x"), (23, "x"), (41, "X")])
    asked: list[str] = []
    query = session.query
    monkeypatch.setattr(session, "query", lambda *args: asked.append(str(args[0])) or query(*args))
    for step in steps(wanted):
        WriteExecutor(session).write(step)
    assert sum("STRAIGHT_JOIN" in statement for statement in asked) == 1
    assert left(session) == [(23, "x"), (23, "x"), (41, "X"), (7, "x")]


@pytest.mark.parametrize("longest", [4, 5, 6, 7, 8, 9, 40, 300])
def test_a_list_that_the_server_cuts_off_isnt_believed(session: MySQLSession, longest: int) -> None:
    """Also where it is cut in the middle of a number, which is another row's then."""
    wanted, again = [(n, "x") for n in range(130)], (0, 10, 101, 102, 103, 129)
    session.query(f"SET SESSION group_concat_max_len = {longest}")
    there(session, PLAIN, [*wanted, *((n, "x") for n in again)])
    for step in steps(wanted):
        WriteExecutor(session).write(step)
    assert sorted(left(session)) == [(n, "x") for n in again]


@pytest.mark.parametrize("seed", range(12))
def test_rows_at_random_leave_what_a_multiset_leaves(session: MySQLSession, seed: int) -> None:
    rng = random.Random(seed)
    texts = (None, "", "a", "A", "a ", "é", "e", "x|y", "tab\there", "back\\slash", "o'clock")
    rows = [(rng.choice((None, -1, 0, 1, 2**31 - 1)), rng.choice(texts)) for _ in range(120)]
    there(session, rng.choice((PLAIN, INDEXED, MORE_COLUMNS)), rows)
    wanted = rng.sample(rows, rng.randint(20, 110))
    for step in steps(wanted):
        WriteExecutor(session).write(step)
    assert left(session) == sorted((Counter(rows) - Counter(wanted)).elements(), key=repr)


def test_of_rows_that_are_there_too_often_all_go_and_some_come_back(
    session: MySQLSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(n, "x") for n in range(50)] + [(7, "x")] * 3 + [(9, "é")] * 5 + [(None, None)] * 4
    wanted = [(n, "x") for n in range(50)] + [(9, "é"), (9, "é"), (None, None)]
    there(session, INDEXED, rows)
    statements = written(session, monkeypatch)
    for step in steps(wanted):
        WriteExecutor(session).write(step)
    assert not [statement for statement in statements if "LIMIT" in statement]
    assert left(session) == sorted((Counter(rows) - Counter(wanted)).elements(), key=repr)


def test_no_more_rows_come_back_than_are_wanted_gone(
    session: MySQLSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [(n, "x") for n in range(20)]
    there(session, PLAIN, [*wanted, *[(3, "x")] * 15, *[(4, "x")] * 6])
    statements = written(session, monkeypatch)
    for step in steps(wanted):
        WriteExecutor(session).write(step)
    assert [statement.count("LIMIT 1") for statement in statements if "LIMIT" in statement] == [1]
    assert sum("SELECT 6 AS copies" in s or ", 6 AS copies" in s for s in statements) == 1
    assert left(session) == [*[(3, "x")] * 15, *[(4, "x")] * 6]


def test_rows_that_hold_more_than_the_upstream_knows_stay_themselves(session: MySQLSession) -> None:
    wanted = [(n, "x") for n in range(20)]
    there(session, MORE_COLUMNS, wanted)
    session.query("INSERT INTO d.t (own, a, t) VALUES (6, 3, 'x'), (7, 3, 'x')")
    for step in steps(wanted):
        WriteExecutor(session).write(step)
    assert len(session.query("SELECT DISTINCT own FROM d.t WHERE own IN (5, 6, 7)")) == 2


def test_rows_with_a_zero_dont_go_and_come_back(
    session: MySQLSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may have a sign: they are equal, but nobody may make one of the other."""
    doubles = table(1, "t", "a int", "d double")
    rows = [(n, 1.5) for n in range(20)] + [(1, 0.0), (2, None)]
    session.query("CREATE DATABASE d")
    session.query("CREATE TABLE d.t (a int, d double)")
    for row in [*rows, (1, 0.0), (1, 0.0), (2, 1.5), (2, None)]:
        session.query("INSERT INTO d.t VALUES (%s, %s)", row)
    session.query("COMMIT")
    statements = written(session, monkeypatch)
    for step in steps(rows, of=doubles):
        WriteExecutor(session).write(step)
    assert ["`a`<=>1" in statement for statement in statements if "LIMIT" in statement] == [True]
    assert sorted(session.query("SELECT a, d FROM d.t"), key=repr) == [
        (1, 0.0),
        (1, 0.0),
        (2, 1.5),
        (2, None),
    ]


def test_rows_of_a_table_with_a_history_dont_go_and_come_back(
    session: MySQLSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [(n, "x") for n in range(20)]
    try:
        there(session, PLAIN + " WITH SYSTEM VERSIONING", [*wanted, (3, "x"), (3, "x")])
    except DownstreamError:
        pytest.skip("the server has no such tables")
    statements = written(session, monkeypatch)
    for step in steps(wanted):
        WriteExecutor(session).write(step)
    assert not [statement for statement in statements if statement.startswith("INSERT")]
    assert left(session) == [(3, "x"), (3, "x")]


def test_rows_that_came_after_they_were_counted_are_no_mistake_that_passes(
    session: MySQLSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [(n, "x") for n in range(20)]
    there(session, PLAIN, [*wanted, (3, "x")])
    (step,) = steps(wanted)
    query = session.query

    def then_another_comes(*args: Any) -> Any:
        rows = query(*args)
        if "AS surplus" in str(args[0]):
            query("INSERT INTO d.t (a, t) VALUES (5, 'x')")
        return rows

    monkeypatch.setattr(session, "query", then_another_comes)
    with pytest.raises(ApplyError, match="came or went while"):
        WriteExecutor(session).write(step)

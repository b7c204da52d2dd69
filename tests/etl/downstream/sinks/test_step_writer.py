"""What a refused step says: which rows, whatever the table is like."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.steps import LoadDetail, Step
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.sinks import write_executor
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.etl.downstream.sinks.write_executor import WriteExecutor

PLAIN = "CREATE TABLE d.t (id int, v int, PRIMARY KEY (id))"
PARTITIONED = (
    "CREATE TABLE d.t (id int, v int, PRIMARY KEY (id)) PARTITION BY HASH (id) PARTITIONS 3"
)
GENERATED = (
    "CREATE TABLE d.t (id int PRIMARY KEY, v int, w int AS (v + 1) STORED, x int AS (v + 2)"
    " VIRTUAL, UNIQUE (w))"
)
LAYOUT = LoadLayout(("id", "v"))


@pytest.mark.parametrize(
    "create", [PLAIN, PARTITIONED, GENERATED], ids=["plain", "partitioned", "generated"]
)
@pytest.mark.parametrize(
    ("replaces", "told"), [(0, r"there already: \(1,\)"), (2, r"missing: \(2,\)")]
)
def test_a_load_that_meets_other_rows_than_expected_names_them(
    session: MySQLSession, create: str, replaces: int, told: str
) -> None:
    for statement in (
        "CREATE DATABASE d",
        create,
        "INSERT INTO d.t (id, v) VALUES (1, 1)",
        "COMMIT",
        "BEGIN",
    ):
        session.query(statement)
    detail = LoadDetail(90, layout=LAYOUT, replaces=replaces, keys=("id",))
    step = Step(detail, 100, "d", "t", 2, 0, b"1\t10\n2\t20\n")
    with pytest.raises(ApplyError, match=told):
        WriteExecutor(session).write(step)
    assert session.query("SELECT id, v FROM d.t") == [(1, 1)]


@pytest.mark.parametrize(
    "create", [PLAIN, PARTITIONED, GENERATED], ids=["plain", "partitioned", "generated"]
)
def test_rows_that_may_be_there_already_are_looked_for_in_any_table(
    session: MySQLSession, create: str
) -> None:
    for statement in (
        "CREATE DATABASE d",
        create,
        "INSERT INTO d.t (id, v) VALUES (1, 1)",
        "COMMIT",
        "BEGIN",
    ):
        session.query(statement)
    detail = LoadDetail(90, absent=True, layout=LAYOUT)
    with pytest.raises(ApplyError, match="has no key, and 1 of its rows written"):
        WriteExecutor(session).write(Step(detail, 100, "d", "t", 2, 0, b"1\t1\n2\t20\n"), safe=True)
    WriteExecutor(session).write(Step(detail, 100, "d", "t", 1, 0, b"2\t20\n"), safe=True)


def test_many_tables_are_looked_up_at_once_and_one_without_transactions_still_stops(
    session: MySQLSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.etl.downstream.sinks.write_executor._MANY_TABLES", 2)
    session.query("CREATE DATABASE d")
    for name, engine in (*((f"t{n}", "InnoDB") for n in range(6)), ("kept", "Aria")):
        session.query(f"CREATE TABLE d.{name} (id int, v int, PRIMARY KEY (id)) ENGINE = {engine}")
    looked_up: list[tuple[str, str]] = []
    lookup = write_executor.engines_without_transactions

    def counted(session: MySQLSession, tables: Sequence[tuple[str, str]]) -> list[str]:
        looked_up.extend(tables)
        return lookup(session, tables)

    monkeypatch.setattr(write_executor, "engines_without_transactions", counted)

    def write(name: str) -> None:
        detail = LoadDetail(90, layout=LAYOUT, keys=("id",))
        WriteExecutor(session).write(Step(detail, 100, "d", name, 1, 0, b"1\t10\n"))

    session.query("BEGIN")
    for n in range(6):
        write(f"t{n}")
    assert looked_up == [("d", "t0"), ("d", "t1")]
    with pytest.raises(DownstreamError, match=r"d\.kept .* Aria, which has no transactions"):
        write("kept")
    session.query("COMMIT")
    session.query("CREATE TABLE d.later (id int, v int, PRIMARY KEY (id)) ENGINE = MyISAM")
    with pytest.raises(DownstreamError, match=r"d\.later .* MyISAM, which has no transactions"):
        write("later")

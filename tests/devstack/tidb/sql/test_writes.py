"""What sessions of the stand-in TiDB write becomes one binlog at COMMIT."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

from sluice.devstack.tidb.sql.writes import WriteTransaction, mutations
from sluice.tidb import pb
from tests.devstack.sql_harness import Port, port


class Written:
    """The port with a pump that keeps binlogs: what was committed is there for readers."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.port: Port | None = None

    def commit(self, writes: WriteTransaction) -> int:
        assert self.port is not None
        now = self.port._take()
        writes.check_unchanged(now)
        value = pb.binlog.PrewriteValue(
            schema_version=1 << 40, mutations=mutations(writes.tables())
        )
        binlog = pb.binlog.Binlog(
            tp=pb.binlog.Prewrite, start_ts=now, prewrite_value=value.SerializeToString()
        )
        self.payloads.append(binlog.SerializeToString())
        commit_ts = self.port._take()
        self.port.versions.follow(commit_ts, self.payloads[-1])
        return commit_ts

    def sequence(self) -> list[int]:
        """The kinds of row changes of the last transaction."""
        binlog = pb.binlog.Binlog.FromString(self.payloads[-1])
        value = pb.binlog.PrewriteValue.FromString(binlog.prewrite_value)
        return [kind for mutation in value.mutations for kind in mutation.sequence]


@pytest.fixture(scope="module")
def opened() -> Iterator[Written]:
    made = Written()
    with port("bootstrap", commit=made.commit) as made.port:
        yield made


@pytest.fixture
def written(opened: Written) -> Written:
    opened.payloads.clear()
    return opened


@pytest.fixture
def run(written: Written) -> Iterator[Callable[..., Any]]:
    assert written.port is not None
    with contextlib.closing(written.port.connect()) as connection, connection.cursor() as cursor:

        def run(statement: str) -> Any:
            count = cursor.execute(statement)
            return cursor.fetchall() if cursor.description else count

        run("SET autocommit = 1")
        yield run


def test_what_one_session_commits_another_reads(written: Written, run: Callable[..., Any]) -> None:
    assert written.port is not None
    run("BEGIN")
    assert run("DELETE FROM bank.child WHERE id IN (101, 102, 103)") == 3
    assert run("SELECT COUNT(*) FROM bank.child WHERE id BETWEEN 101 AND 103") == ((0,),)
    with written.port.cursor() as other:
        other.execute("SELECT COUNT(*) FROM bank.child WHERE id BETWEEN 101 AND 103")
        assert other.fetchone() == (3,)
    assert written.payloads == []
    run("COMMIT")
    assert written.sequence() == [pb.binlog.DeleteRow] * 3
    with written.port.cursor() as other:
        other.execute("SELECT COUNT(*) FROM bank.child WHERE id BETWEEN 101 AND 103")
        assert other.fetchone() == (0,)


def test_rows_that_were_deleted_come_again_as_they_were(run: Callable[..., Any]) -> None:
    before = run("SELECT * FROM bank.child WHERE id BETWEEN 1 AND 20")
    assert len(before) == 20
    names = ", ".join(row[0] for row in run(COLUMNS))
    run("DELETE FROM bank.child WHERE id BETWEEN 1 AND 20")
    places = ", ".join(
        "(" + ", ".join(pymysql.converters.escape_item(v, "utf8mb4") for v in row) + ")"
        for row in before
    )
    assert run(f"INSERT INTO bank.child ({names}) VALUES {places}") == 20
    assert run("SELECT * FROM bank.child WHERE id BETWEEN 1 AND 20") == before


COLUMNS = (
    "SELECT COLUMN_NAME FROM information_schema.columns WHERE TABLE_SCHEMA = 'bank' AND"
    " TABLE_NAME = 'child'"
)


def test_a_rollback_and_a_failed_statement_write_nothing(
    written: Written, run: Callable[..., Any]
) -> None:
    run("BEGIN")
    run("DELETE FROM bank.child WHERE id = 1")
    run("ROLLBACK")
    assert run("SELECT COUNT(*) FROM bank.child WHERE id = 1") == ((1,),)
    names = ", ".join(row[0] for row in run(COLUMNS))
    row = run("SELECT * FROM bank.child WHERE id = 1")[0]
    place = ", ".join(pymysql.converters.escape_item(v, "utf8mb4") for v in row)
    with pytest.raises(pymysql.MySQLError, match="Duplicate entry"):
        run(f"INSERT INTO bank.child ({names}) VALUES ({place})")
    with pytest.raises(pymysql.MySQLError, match="Unknown column 'nowhere'"):
        run("UPDATE bank.child SET nowhere = 1")
    assert written.payloads == []


def test_a_row_that_another_transaction_changed_since_stops_the_commit(
    written: Written, run: Callable[..., Any]
) -> None:
    assert written.port is not None
    run("BEGIN")
    run("DELETE FROM bank.child WHERE id = 5")
    with written.port.cursor() as other:
        other.execute("SET autocommit = 1")
        other.execute("DELETE FROM bank.child WHERE id = 5")
    with pytest.raises(pymysql.MySQLError, match="Write conflict"):
        run("COMMIT")


def test_the_rows_that_statements_changed_are_counted(run: Callable[..., Any]) -> None:
    run("SET @undone = 0")
    run("BEGIN")
    run("DELETE FROM bank.child WHERE (id = 1) OR (id = 2) OR (id = 1000000)")
    run("SET @undone = @undone + ROW_COUNT()")
    run("DELETE FROM bank.child WHERE id > 2 LIMIT 4")
    run("SET @undone = @undone + ROW_COUNT()")
    assert run("SELECT @undone AS rows_undone, 6 AS rows_expected") == ((6, 6),)
    run("ROLLBACK")


def test_what_was_not_played_never_was() -> None:
    with port("types") as opened, opened.cursor() as cursor:
        tables = "SELECT COUNT(*) FROM information_schema.tables WHERE TABLE_SCHEMA = 'types'"
        cursor.execute(tables)
        assert cursor.fetchone() > (0,)
        opened.versions.end_at(1)
        cursor.execute(tables)
        assert cursor.fetchone() == (0,)

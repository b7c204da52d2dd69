"""The downstream session: settings, errors, names and values that look like injections."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.etl.changes.dialect import MARIADB_PRODUCT
from sluice.etl.changes.formats.sql_columns import key_conditions, literal_column
from sluice.etl.changes.formats.sql_text import literal, quote_name
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.settings import Downstream
from sluice.tidb.schema import Column
from tests.etl.mariadb_fixture import MariaDBServer

INJECTION = "x`; DROP DATABASE d; -- '\\\" \0"


def test_the_session_is_strict_in_utc_and_takes_zero_ids_and_dates(session: MySQLSession) -> None:
    session.query("CREATE DATABASE d")
    session.query(
        "CREATE TABLE d.t (id int PRIMARY KEY AUTO_INCREMENT, d date, ts timestamp NULL, s"
        " varchar(2))"
    )
    session.execute(
        "INSERT INTO d.t VALUES (0, '0000-00-00', '0000-00-00 00:00:00', ''), (1, '2020-02-31',"
        " '2020-01-01 12:00:00', '')"
    )
    assert session.query(
        "SELECT id, CAST(d AS CHAR), UNIX_TIMESTAMP(ts) FROM d.t WHERE id = 1"
    ) == [(1, "2020-02-31", 1577880000)]
    assert session.query("SELECT COUNT(*) FROM d.t WHERE id = 0 AND d = '0000-00-00'") == [(1,)]
    with pytest.raises(DownstreamError) as caught:
        session.execute("INSERT INTO d.t VALUES (2, NULL, NULL, 'too long')")
    assert caught.value.code == 1406
    assert not caught.value.transient


def test_names_and_values_that_look_like_statements_stay_names_and_values(
    session: MySQLSession,
) -> None:
    name = INJECTION.replace("\0", "").rstrip()
    session.query("CREATE DATABASE d")
    session.query(
        f"CREATE TABLE d.{quote_name(name)} ({quote_name(name + 'c')} varchar(99) CHARACTER SET"
        " utf8mb4)"
    )
    session.query(
        f"INSERT INTO d.{quote_name(name)} VALUES (%s), ({literal(INJECTION)})", (INJECTION,)
    )
    column = Column(1, name + "c", 0, 15, charset="utf8mb4")
    (condition,) = key_conditions([column], [pa.array([INJECTION], pa.large_string())]).to_pylist()
    assert session.query(
        f"SELECT COUNT(*) FROM d.{quote_name(name)} WHERE ".encode() + condition
    ) == [(2,)]


def test_literals_are_read_back_as_the_same_value(session: MySQLSession) -> None:
    cases = [
        (Column(1, "c", 0, 5), pa.array([0.1, 1e300, -5e-324]), [0.1, 1e300, -5e-324]),
        (
            Column(1, "c", 0, 15, charset="binary"),
            pa.array([b"", b"\0'\\", b"\xff"], pa.large_binary()),
            [b"", b"\0'\\", b"\xff"],
        ),
        (Column(1, "c", 0, 8, 32), pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (
            Column(1, "c", 0, 15, charset="utf8mb4"),
            pa.array(["\0\n'\\😀", None], pa.large_string()),
            ["\0\n'\\😀", None],
        ),
    ]
    for column, array, want in cases:
        texts = literal_column(array, column).to_pylist()
        assert [session.query(b"SELECT " + text)[0][0] for text in texts] == want


def test_lost_connections_deadlocks_and_lock_waits_may_be_tried_again(
    mariadb: MariaDBServer, session: MySQLSession
) -> None:
    session.query("CREATE DATABASE d")
    session.query("CREATE TABLE d.t (id int PRIMARY KEY)")
    session.query("INSERT INTO d.t VALUES (1)")
    session.commit()
    other = MySQLSession(mariadb.downstream)
    other.connect()
    other.begin()
    other.query("SELECT * FROM d.t WHERE id = 1 FOR UPDATE")
    session.query("SET innodb_lock_wait_timeout = 1")
    with pytest.raises(DownstreamError) as caught:
        session.execute("UPDATE d.t SET id = 2")
    assert caught.value.code == 1205
    assert caught.value.transient
    (connection_id,) = session.query("SELECT CONNECTION_ID()")[0]
    other.query(f"KILL {connection_id}")
    with pytest.raises(DownstreamError) as caught:
        session.query("SELECT 1")
    assert caught.value.transient
    session.connect()
    assert session.query("SELECT 1") == [(1,)]
    other.close()


def test_a_server_that_is_not_there_or_refuses_the_password_is_told_apart(
    mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DownstreamError) as caught:
        MySQLSession(Downstream("127.0.0.1", 1, connect_timeout_s=2)).connect()
    assert caught.value.transient
    monkeypatch.setenv("SECRET_OF_TEST", "not the password")
    with pytest.raises(DownstreamError, match="Access denied") as caught:
        MySQLSession(Downstream("127.0.0.1", mariadb.port, password_env="SECRET_OF_TEST")).connect()
    assert not caught.value.transient
    assert "not the password" not in str(caught.value)
    assert "password-env" in str(caught.value)


def test_a_statement_larger_than_the_server_takes_is_refused_for_good_and_the_session_goes_on(
    session: MySQLSession,
) -> None:
    """The server would cut the connection, which looks like an error that a retry may help."""
    size = int(session.query("SELECT @@max_allowed_packet")[0][0])
    with pytest.raises(DownstreamError, match="raise the server's max_allowed_packet") as caught:
        session.query("SELECT LENGTH(%s)", ("x" * size,))
    assert not caught.value.transient
    assert session.query("SELECT LENGTH(%s)", ("x" * (size - 100),)) == [(size - 100,)]


def test_a_session_that_stands_still_is_ended_by_the_server_long_before_eight_hours(
    session: MySQLSession,
) -> None:
    if session.dialect.product != MARIADB_PRODUCT:
        pytest.skip("idle_transaction_timeout and max_statement_time are MariaDB's")
    query = (
        "SELECT @@SESSION.wait_timeout, @@SESSION.idle_transaction_timeout,"
        " @@SESSION.lock_wait_timeout, @@SESSION.max_statement_time"
    )
    wait, idle, lock, statement = session.query(query)[0]
    assert 0 < int(wait) <= 900 and 0 < int(idle) <= 900 and 0 < int(lock) <= 300
    assert float(statement) == 0


@pytest.mark.parametrize("code", [1020, 1205, 1206, 1213])
def test_after_an_error_with_which_the_server_may_have_rolled_back_everything_nothing_goes_on(
    code: int,
) -> None:
    """What goes on behind others does where the transaction still stands."""
    assert DownstreamError(code, "refused").transient

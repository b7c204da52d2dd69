"""What deciding about conflicts of two clusters needs of a TiDB: give `--downstream-server` one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.etl.changes import server_errors
from sluice.etl.downstream import DownstreamError, MySQLSession, begin_optimistic
from tests.etl.mariadb_fixture import MariaDBServer

GOES, COMES = "DELETE FROM d.t WHERE id = {0}", "INSERT INTO d.t VALUES ({0}, 10, {0})"


@pytest.fixture
def session(mariadb: MariaDBServer) -> Iterator[MySQLSession]:
    found = MySQLSession(mariadb.downstream)
    found.connect()
    if not found.dialect.is_tidb:
        pytest.skip(f"{found.dialect} has no optimistic transactions")
    yield found
    found.close()


@pytest.mark.parametrize(
    ("key", "theirs", "is_refused"),
    [
        (1, "UPDATE d.t SET v = 99 WHERE id = 1", True),
        (1, "DELETE FROM d.t WHERE id = 1", True),
        (5, "INSERT INTO d.t VALUES (5, 7, 7)", True),
        (6, "INSERT INTO d.t VALUES (7, 7, 6)", True),  # the same unique value
        (1, "UPDATE d.t SET v = 99 WHERE id = 2", False),
    ],
)
def test_a_commit_fails_if_its_rows_were_changed_since_it_began(
    session: MySQLSession, mariadb: MariaDBServer, key: int, theirs: str, is_refused: bool
) -> None:
    with mariadb.connect() as other, other.cursor() as cursor:
        cursor.execute("CREATE DATABASE d")
        cursor.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v INT, u INT UNIQUE)")
        cursor.execute("INSERT INTO d.t VALUES (1, 1, 1), (2, 2, 2)")
        assert begin_optimistic(session) > 0
        session.query(GOES.format(key))
        session.query(COMES.format(key))
        cursor.execute(theirs)
        cursor.execute("SELECT * FROM d.t")
        before = cursor.fetchall()
        if not is_refused:
            session.query("COMMIT")
            return
        with pytest.raises(DownstreamError) as caught:
            session.query("COMMIT")
        assert caught.value.code == server_errors.WRITE_CONFLICT
        cursor.execute("SELECT * FROM d.t")
        assert cursor.fetchall() == before

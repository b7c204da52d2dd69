"""Tables that are put aside, and what tells that a DDL has run: nothing is dropped, or taken for
done, for a reason that passes.
"""

from __future__ import annotations

import pytest

from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.ddl._recycle import RecycleBin
from sluice.etl.downstream.ddl._state import fingerprint
from tests.etl.downstream.ddl.test_ddl import ddl_step, described
from tests.etl.mariadb_fixture import MariaDBServer


def test_a_table_that_cannot_be_put_aside_at_once_is_not_dropped(
    mariadb: MariaDBServer, session: MySQLSession
) -> None:
    for statement in (
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id int PRIMARY KEY)",
        "INSERT INTO d.t VALUES (1)",
        "COMMIT",
        "SET lock_wait_timeout = 1",
    ):
        session.query(statement)
    with mariadb.connect() as reader, reader.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM d.t")
        with pytest.raises(DownstreamError) as caught:
            RecycleBin(session, 3600).drop("d", "t", 9, 100)
        assert caught.value.transient
    assert session.query("SELECT * FROM d.t") == [(1,)]


def test_rows_do_not_look_like_a_ddl_that_has_run(session: MySQLSession) -> None:
    for statement in (
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id int AUTO_INCREMENT PRIMARY KEY)",
        "COMMIT",
    ):
        session.query(statement)
    ddl = ddl_step(
        5,
        "ALTER TABLE `t` ADD COLUMN `c` INT",
        "t",
        {"9": described(9, "t", "id", "c")},
        {"9": described(9, "t", "id")},
    ).detail
    before = fingerprint(session, ddl, swaps=False)
    session.query("INSERT INTO d.t VALUES (1000)")
    session.query("COMMIT")
    assert fingerprint(session, ddl, swaps=False) == before

"""A TiDB as the downstream: each change exactly once, in both modes, and nothing that it refuses.

See `tests.etl.tidb_stand_in`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.apply.run import ApplyError
from sluice.etl.changes.dialect import Dialect
from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.ddl._alter import alterations
from sluice.etl.downstream.ddl._state import fingerprint
from sluice.etl.settings import Apply
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from tests.etl.apply.test_apply_recordings import replay
from tests.etl.mariadb_fixture import MARIADB, MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS
from tests.etl.snapshots import differences
from tests.etl.story import Story, table
from tests.etl.tidb_stand_in import MYSQL, Seen, TiDBStandIn

TIDB = Dialect.from_version("5.7.25-TiDB-v6.6.0")


@pytest.fixture
def mariadb(own_mariadb: MariaDBServer) -> MariaDBServer:
    return own_mariadb


@pytest.fixture
def tidb(mariadb: MariaDBServer) -> Iterator[TiDBStandIn]:
    stand_in = TiDBStandIn(mariadb)
    yield stand_in
    stand_in.close()


@pytest.fixture
def tidb_session(tidb: TiDBStandIn) -> Iterator[MySQLSession]:
    session = MySQLSession(tidb.downstream)
    session.connect()
    yield session
    session.close()


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SHOW WARNINGS LIMIT 10", 1064),
        ("SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',TIME_ROUND_FRACTIONAL')", 1105),
        ("SET SESSION check_constraint_checks=0", 1193),
        ("SET SESSION explicit_defaults_for_timestamp = 1", 1238),
        ("SELECT NAME FROM information_schema.INNODB_SYS_TABLES", 1146),
        ("SELECT IS_USED_LOCK('a')", 1305),
        ("ALTER TABLE `d`.`t` ADD COLUMN `x` int, ADD INDEX `ix` (`x`)", 1072),
        ("ALTER TABLE `d`.`t` ADD COLUMN `x` int GENERATED ALWAYS AS (`id`) STORED", 3106),
        ("ALTER TABLE `d`.`t` DROP COLUMN `x`, DROP INDEX `ix`", 1091),
        ("FLUSH TABLES WITH READ LOCK", 1105),
        ("KILL 1", 1105),
    ],
)
def test_the_stand_in_refuses_what_was_measured(
    tidb_session: MySQLSession, statement: str, code: int
) -> None:
    tidb_session.query("CREATE DATABASE d")
    tidb_session.query("CREATE TABLE d.t (id int)")
    with pytest.raises(DownstreamError) as caught:
        tidb_session.query(statement)
    assert caught.value.code == code


def test_the_stand_in_commits_with_load_data(mariadb: MariaDBServer, tidb: TiDBStandIn) -> None:
    import dataclasses

    session = MySQLSession(tidb.downstream)
    session.connect()
    session.query("CREATE DATABASE d")
    session.query("CREATE TABLE d.t (id int)")
    session._dialect = dataclasses.replace(session.dialect, product="MySQL")
    session.begin()
    session.execute("INSERT INTO d.t VALUES (1)")
    session.load("`d`.`t`", LoadLayout(("id",)), b"2\n")
    session.rollback()
    assert session.query("SELECT id FROM d.t ORDER BY 1") == [(1,), (2,)]
    session.close()


def test_a_session_is_set_up_as_writing_to_a_tidb_needs_it(
    tidb: TiDBStandIn, tidb_session: MySQLSession
) -> None:
    assert (tidb_session.dialect.product, tidb_session.dialect.version) == ("TiDB", (6, 6, 0))
    shown = dict(tidb_session.query("SHOW SESSION VARIABLES"))
    wanted = {
        "tidb_txn_mode": "pessimistic",
        "allow_auto_random_explicit_insert": "ON",
        "tidb_constraint_check_in_place": "ON",
    }
    assert {name: shown[name] for name in wanted} == wanted
    assert tidb.seen.refused == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
def test_bank_and_shop_arrive_without_load_data(
    tidb: TiDBStandIn, tmp_path: Path, mode: str
) -> None:
    replay(tidb, tmp_path, "shop", "b_mid", 500, Apply(mode=mode, max_rows=2000))  # type: ignore[arg-type]
    assert differences(RECORDINGS / "shop", "b_mid", tidb) == []  # type: ignore[arg-type]
    assert [s for s in tidb.seen.statements if s.startswith("LOAD")] == []
    assert tidb.seen.refused == []


@pytest.fixture
def mariadbs_ddl(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind the stand-in lacks some of TiDB's DDL."""
    collation = Dialect.collation
    monkeypatch.setattr(Dialect, "collation", lambda self, name: collation(MARIADB, name))
    for name in ("index_visibility", "generated_primary_keys", "exchanges_partitions"):
        monkeypatch.setattr(Dialect, name, getattr(MARIADB, name))


def test_every_type_and_key_shape_arrives(
    tidb: TiDBStandIn, tmp_path: Path, mariadbs_ddl: None
) -> None:
    (label,) = (path.name for path in (RECORDINGS / "types" / "snapshots").iterdir())
    replay(tidb, tmp_path, "types", label, 7)  # type: ignore[arg-type]
    assert differences(RECORDINGS / "types", label, tidb) == []  # type: ignore[arg-type]
    assert tidb.seen.refused == []


def test_a_transaction_that_is_too_large_is_refused_with_the_settings_that_help(
    tidb: TiDBStandIn, tmp_path: Path
) -> None:
    story = Story(tidb, tmp_path)  # type: ignore[arg-type]
    made = story.create(
        table(11, "t", "id int", "v varchar(100)", primary="id"),
        "CREATE TABLE `t` (`id` int primary key, `v` varchar(100))",
    )
    story.apply()
    tidb.seen = Seen(transaction_bytes=1000)
    for first in range(0, 100, 10):
        story.insert(made, *({"id": i, "v": "x" * 50} for i in range(first, first + 10)))
    with pytest.raises(ApplyError, match="txn-total-size-limit"):
        story.apply()
    tidb.seen = Seen()
    story.apply()
    assert len(story.rows("t")) == 100


def test_an_index_on_a_new_column_is_a_statement_of_its_own(
    tidb: TiDBStandIn, tidb_session: MySQLSession
) -> None:
    before, after = (
        table(11, "t", "id int", primary="id"),
        table(11, "t", "id int", "x int", "y int", primary="id", unique=("x",)),
    )
    tidb_session.query("CREATE DATABASE d")
    tidb_session.query("CREATE TABLE d.t (id int PRIMARY KEY)")
    plain = table(11, "t", "id int", "x int", "y int", primary="id")
    assert (
        len(alterations(tidb_session, before, plain, DdlJob(1, type=Action.MULTI_SCHEMA_CHANGE))[0])
        == 1
    )
    statements, _ = alterations(
        tidb_session, before, after, DdlJob(1, type=Action.MULTI_SCHEMA_CHANGE)
    )
    assert len(statements) == 2
    for statement in statements:
        tidb_session.execute(statement)
    assert tidb_session.query(
        "SELECT COUNT(*) FROM information_schema.STATISTICS WHERE TABLE_NAME = 't' AND COLUMN_NAME"
        " = 'x'"
    ) == [(1,)]


def test_a_ddl_that_goes_on_after_its_session_is_waited_for(
    mariadb: MariaDBServer, tidb_session: MySQLSession
) -> None:
    tidb_session.query("CREATE DATABASE d")
    tidb_session.query("CREATE TABLE d.t (id int PRIMARY KEY)")
    tidb_session.query("CREATE DATABASE other")
    tidb_session.begin()
    tidb_session.query("SELECT * FROM d.t")  # keeps a DDL from ending
    with mariadb.connect(database="d") as connection:
        running = threading.Thread(
            target=lambda: connection.cursor().execute("ALTER TABLE d.t ADD COLUMN x int")
        )
        running.start()
        ddl = DdlJob(1, schema_name="d", table_name="t")
        while ("running",) not in tidb_session.query(
            "SELECT STATE FROM information_schema.DDL_JOBS"
        ):
            time.sleep(0.01)
        with pytest.raises(DownstreamError, match="still running") as caught:
            fingerprint(tidb_session, ddl, swaps=False)
        assert caught.value.transient
        fingerprint(tidb_session, replace(ddl, schema_name="other"), swaps=False)
        tidb_session.rollback()
        running.join()
    while ("running",) in tidb_session.query("SELECT STATE FROM information_schema.DDL_JOBS"):
        # MariaDB answers a statement before its list of processes knows that it ended; TiDB doesn't
        time.sleep(0.01)
    fingerprint(tidb_session, ddl, swaps=False)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
def test_a_mysql_that_takes_no_load_data_gets_the_same_rows(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    mysql = TiDBStandIn(mariadb, MYSQL)
    replay(mysql, tmp_path, "shop", "b_mid", 500, Apply(mode=mode, max_rows=2000))  # type: ignore[arg-type]
    assert differences(RECORDINGS / "shop", "b_mid", mysql) == []  # type: ignore[arg-type]
    assert mysql.seen.refused == []
    mysql.close()

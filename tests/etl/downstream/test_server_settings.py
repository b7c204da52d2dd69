"""What writing relies on in the server is set, or checked, when a session begins.

And so are the user's rights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.changes.dialect import MARIADB_PRODUCT
from sluice.etl.downstream import CheckpointError, CheckpointTable, DownstreamError, MySQLSession
from sluice.etl.downstream.grants import TABLE_RIGHTS, grant_statements, missing_rights
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, column, table


@pytest.fixture
def with_globals(mariadb: MariaDBServer) -> Iterator[list[str]]:
    """Names of global variables that a test changes: they come back."""
    names: list[str] = []
    yield names
    with mariadb.connect() as connection, connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"SET GLOBAL {name} = DEFAULT")


def set_global(server: MariaDBServer, changed: list[str], **values: str) -> None:
    """Set those of the variables that the server has; skip the test if it has none of them."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({', '.join(map(repr, (*values, '')))})"
        )
        there = [str(name) for name, _ in cursor.fetchall()]
        if not there:
            pytest.skip(f"this server has no {', '.join(values)}")
        for name in there:
            changed.append(name)
            cursor.execute(f"SET GLOBAL {name} = {values[name]}")


def opened(server: MariaDBServer, **settings: object) -> MySQLSession:
    session = MySQLSession(replace(server.downstream, **settings))
    session.connect()
    return session


def test_null_in_a_timestamp_stays_null_whatever_the_servers_default_is(
    mariadb: MariaDBServer, with_globals: list[str]
) -> None:
    set_global(mariadb, with_globals, explicit_defaults_for_timestamp="0")
    session = opened(mariadb)
    session.query("CREATE DATABASE d")
    session.query("CREATE TABLE d.t (id int PRIMARY KEY, at timestamp)")
    session.execute("INSERT INTO d.t VALUES (1, NULL)")
    session.execute("ALTER TABLE d.t ADD COLUMN later timestamp")
    assert session.query("SELECT at, later FROM d.t") == [(None, None)]


def test_keys_are_as_long_as_ever_where_the_servers_row_format_is_compact(
    mariadb: MariaDBServer, with_globals: list[str], tmp_path: Path
) -> None:
    set_global(mariadb, with_globals, innodb_default_row_format="compact")
    story = Story(mariadb, tmp_path)
    made = story.create(table(10, "t", "id int", "v varchar(700)", primary="id", unique=("v",)), "")
    story.insert(made, {"id": 1, "v": "é" * 700})
    story.apply()
    assert story.rows("t", "id, CHAR_LENGTH(v)") == [(1, 700)]


def test_a_server_that_forces_primary_keys_is_refused_when_the_session_begins(
    mariadb: MariaDBServer, with_globals: list[str]
) -> None:
    set_global(mariadb, with_globals, innodb_force_primary_key="ON")
    with pytest.raises(DownstreamError, match="innodb_force_primary_key is ON"):
        opened(mariadb)


def test_a_server_that_requires_primary_keys_is_refused_unless_it_makes_them_or_lets_us_off(
    mariadb: MariaDBServer, with_globals: list[str]
) -> None:
    set_global(mariadb, with_globals, sql_require_primary_key="ON")
    with pytest.raises(
        DownstreamError, match=r"sql_require_primary_key is ON.*SESSION_VARIABLES_ADMIN"
    ):
        opened(mariadb)
    root = opened(mariadb, user="root")
    assert root.query("SELECT @@SESSION.sql_require_primary_key") == [(0,)]
    set_global(mariadb, with_globals, sql_generate_invisible_primary_key="ON")
    opened(mariadb)


def test_servers_defaults_that_would_change_what_is_written_do_not_count(
    mariadb: MariaDBServer, with_globals: list[str]
) -> None:
    set_global(
        mariadb,
        with_globals,
        completion_type="1",
        sql_safe_updates="1",
        sql_select_limit="1",
        default_storage_engine="MyISAM",
        sql_notes="0",
        sql_mode="'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'",
        time_zone="'+05:00'",
        foreign_key_checks="1",
        max_error_count="0",
        tx_isolation="'SERIALIZABLE'",
        tx_read_only="1",
        transaction_isolation="'SERIALIZABLE'",
        transaction_read_only="1",
        sql_if_exists="1",
        autocommit="1",
        default_week_format="3",
        max_statement_time="1",
        max_execution_time="1",
        explicit_defaults_for_timestamp="0",
    )
    session = opened(mariadb)
    session.query("CREATE DATABASE d")
    session.query("CREATE TABLE d.t (a varchar(9))")
    session.begin()
    session.execute(r"INSERT INTO d.t VALUES ('a\tb'), ('c')")
    session.rollback()
    session.execute(r"INSERT INTO d.t VALUES ('a\tb'), ('c')")
    session.commit()
    assert session.query("SELECT a FROM d.t ORDER BY 1") == [("a\tb",), ("c",)]
    assert session.execute("DELETE FROM d.t WHERE a LIKE '%b'") == 1
    assert session.query("SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_NAME = 't'") == [
        ("InnoDB",)
    ]
    assert session.query("SELECT @@default_week_format") == [(0,)]
    isolation, limit = (
        ("tx_isolation", "max_statement_time")
        if session.dialect.product == MARIADB_PRODUCT
        else ("transaction_isolation", "max_execution_time")
    )
    assert session.query(f"SELECT @@SESSION.{isolation}, @@SESSION.{limit}") == [
        ("REPEATABLE-READ", 0)
    ]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("binlog_format", "STATEMENT"),
        ("wsrep_load_data_splitting", "ON"),
        ("max_allowed_packet", "1048576"),
        ("innodb_force_primary_key", "ON"),
    ],
)
def test_what_only_the_server_can_change_is_refused_by_name(variable: str, value: str) -> None:
    from sluice.etl.downstream._session_setup import problems

    fine = {
        "log_bin": "ON",
        "wsrep_on": "ON",
        "max_allowed_packet": "16777216",
        "binlog_format": "MIXED",
        "tx_isolation": "REPEATABLE-READ",
    }
    assert list(problems(fine)) == []
    (found,) = problems(fine | {variable: value})
    assert variable in found


def test_a_small_max_allowed_packet_is_refused_by_name(
    mariadb: MariaDBServer, with_globals: list[str]
) -> None:
    set_global(mariadb, with_globals, max_allowed_packet="1048576")
    with pytest.raises(DownstreamError, match="max_allowed_packet is 1048576") as caught:
        opened(mariadb)
    assert not caught.value.transient


def test_rights_that_are_missing_are_named_and_enough_of_them_suffice(
    mariadb: MariaDBServer,
) -> None:
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP USER IF EXISTS narrow@'127.0.0.1'")
        cursor.execute("CREATE USER narrow@'127.0.0.1'")
        cursor.execute(f"GRANT {', '.join(TABLE_RIGHTS)} ON `shop\\_%`.* TO narrow@'127.0.0.1'")
    with pytest.raises(DownstreamError) as caught:
        opened(mariadb, user="narrow")
    for right in (
        "lacks rights: SELECT, INSERT, UPDATE, DELETE on tidb_binlog; SELECT, INSERT, UPDATE,"
        " DELETE, CREATE, ",
        " on sluice_recycle; PROCESS on *.*",
        "PROCESS on *.*",
        "GRANT SELECT, INSERT",
    ):
        assert right in str(caught.value)
    assert not caught.value.transient
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"GRANT {', '.join(TABLE_RIGHTS)} ON sluice_recycle.* TO narrow@'127.0.0.1'")
        cursor.execute("GRANT SELECT, INSERT, UPDATE ON tidb_binlog.* TO narrow@'127.0.0.1'")
        cursor.execute("GRANT PROCESS ON *.* TO narrow@'127.0.0.1'")
    with pytest.raises(DownstreamError, match=r"lacks rights: DELETE on tidb_binlog\."):
        opened(mariadb, user="narrow")  # a copy would fail when it removes its list of chunks
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("GRANT DELETE ON tidb_binlog.* TO narrow@'127.0.0.1'")
    opened(mariadb, user="narrow").close()


def test_the_rights_that_are_printed_suffice_and_reach_nothing_of_the_servers(
    mariadb: MariaDBServer,
) -> None:
    account, own = "`printed`@'127.0.0.1'", ("tidb_binlog", "sluice_recycle")
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP USER IF EXISTS {account}")
        cursor.execute(f"CREATE USER {account}")
        for line in grant_statements(account, ["s_1", "a`b", "100%"], own, process=True):
            cursor.execute(line)
    session = opened(mariadb, user="printed")
    try:
        for name in ("s_1", "a`b", "100%"):
            session.query(f"CREATE DATABASE `{name.replace('`', '``')}`")
        for statement in (
            "SELECT * FROM mysql.db",
            "CREATE DATABASE sx1",
            "CREATE DATABASE `100x`",
        ):
            with pytest.raises(DownstreamError, match="denied"):
                session.query(statement)
    finally:
        session.close()
        with mariadb.connect() as connection, connection.cursor() as cursor:
            for name in ("s_1", "a`b", "100%"):
                cursor.execute(f"DROP DATABASE IF EXISTS `{name.replace('`', '``')}`")


def test_grants_are_read_as_servers_write_them() -> None:
    everything = [
        "GRANT ALL PRIVILEGES ON *.* TO `u`@`%` IDENTIFIED BY PASSWORD '*X' WITH GRANT OPTION"
    ]
    assert missing_rights(everything, ("tidb_binlog", "sluice_recycle"), process=True) == []
    listed = f"GRANT {', '.join(TABLE_RIGHTS)}, PROCESS, FILE ON *.* TO 'u'@'%'"
    assert missing_rights([listed], ("tidb_binlog", "sluice_recycle"), process=True) == []
    assert missing_rights(
        [listed.replace("PROCESS, ", "")], ("tidb_binlog", "sluice_recycle"), process=True
    ) == ["PROCESS on *.*"]
    assert (
        missing_rights(
            [listed.replace("PROCESS, ", "")], ("tidb_binlog", "sluice_recycle"), process=False
        )
        == []
    )
    assert missing_rights(
        [listed.replace("INDEX, ", "")], ("tidb_binlog", "sluice_recycle"), process=True
    ) == ["INDEX on the replicated databases"]
    assert "UPDATE on the replicated databases" in missing_rights(
        [listed.replace("UPDATE,", "UPDATE (`a`, `b`),")], ("c", "d"), process=True
    )
    assert (
        len(
            missing_rights(
                ["GRANT USAGE ON *.* TO `u`@`%`", "GRANT `r`@`%` TO `u`@`%`"],
                ("c", "d"),
                process=True,
            )
        )
        == len(TABLE_RIGHTS) + 1
    )


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_table_without_transactions_is_not_written_to(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    story = Story(mariadb, tmp_path)
    made = story.create(
        table(11, "t", "id int", primary="id"), "CREATE TABLE `t` (`id` int primary key)"
    )
    story.apply()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE d.t ENGINE = MyISAM")
    story.insert(made, {"id": 1})
    config = Settings(
        Upstream("unused"), Relay(story._url), mariadb.downstream, apply=Apply(mode, 2)
    )
    with pytest.raises(DownstreamError, match=r"table d\.t .* MyISAM.* ENGINE = InnoDB"):
        run_apply(config, until_ts=story._ts, run_seconds=240, prepare=local_preparer(config))
    assert story.rows("t") == []
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE d.t ENGINE = InnoDB")
    story.apply()
    assert story.rows("t") == [(1,)]


def test_a_checkpoint_table_without_transactions_is_refused(mariadb: MariaDBServer) -> None:
    session = opened(mariadb)
    checkpoint = CheckpointTable(session, 7)
    checkpoint.create()
    session.query("ALTER TABLE tidb_binlog.checkpoint ENGINE = MyISAM")
    with pytest.raises(CheckpointError, match="MyISAM"):
        checkpoint.create()


def test_a_timestamp_that_an_old_server_moves_by_itself_stays_when_a_new_column_is_filled(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    made = story.create(
        table(11, "t", "id int", "at timestamp", primary="id"),
        "CREATE TABLE `t` (`id` int primary key, `at` timestamp null)",
    )
    story.insert(made, {"id": 1, "at": "2020-01-01 00:00:00"})
    story.apply()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET explicit_defaults_for_timestamp = 0, time_zone = '+00:00'")
        cursor.execute("ALTER TABLE d.t MODIFY at timestamp")  # ON UPDATE CURRENT_TIMESTAMP, unsaid
    added = column(3, "d date not null", origin_default="2021-05-05")
    story.statement(
        5,
        "ALTER TABLE `t` ADD COLUMN `d` date not null",
        table(11, "t", "id int", "at timestamp", added, primary="id"),
    )
    with mariadb.connect() as connection, connection.cursor() as cursor:
        story.apply()
        cursor.execute("SHOW CREATE TABLE d.t")
        assert "ON UPDATE" in cursor.fetchone()[1].upper()
    assert story.rows("t", "CAST(at AS CHAR), CAST(d AS CHAR)") == [
        ("2020-01-01 00:00:00", "2021-05-05")
    ]

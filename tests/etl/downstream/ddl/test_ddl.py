"""DDL downstream: text, generated statements, what happens when the process dies in the middle."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.formats.ddl_text import tokens
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import Filter, skip_reason
from sluice.etl.changes.steps import CommitDetail, ScopedDdl, Step
from sluice.etl.downstream import CheckpointTable, MySQLSession
from sluice.etl.downstream.ddl import DdlError, create_table
from sluice.etl.downstream.ddl._recycle import RecycleBin
from sluice.etl.downstream.ddl._state import actual_columns, wrong_collations
from sluice.etl.downstream.sinks.mysql import MySQLSink
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table
from tests.etl.mariadb_fixture import MARIADB, MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS, land


def test_strings_names_and_comments_are_single_tokens() -> None:
    text = "ALTER TABLE `a``; b` COMMENT = 'it''s (`x`)\\' /*T![x] ; */ , ADD INDEX(`c`)"
    assert "".join(tokens(text)) == text
    assert {"`a``; b`", "'it''s (`x`)\\'", "/*T![x] ; */"} <= set(tokens(text))


_OWN = Table(5, 1, "tidb_binlog", "t").to_json()


@pytest.mark.parametrize(
    ("ddl", "part"),
    [
        ({"type": 0, "query": "SELECT SETVAL(`s`.`q`, 1000)"}, "sequence"),
        ({"type": 31, "query": ""}, "changes nothing"),
        ({"type": 6, "schema_state": 1, "query": "", "schema_name": "d"}, "only begun"),
        ({"type": 3, "query": "", "schema_name": "MySQL"}, "filtered"),
        (
            {"type": 3, "query": "", "schema_name": "x", "effect": {"tables": {"5": _OWN}}},
            "filtered",
        ),
    ],
)
def test_what_means_nothing_downstream_is_skipped_with_a_reason(
    ddl: dict[str, Any], part: str
) -> None:
    assert part in (skip_reason(DdlJob.from_json({"commit_ts": 1, **ddl}), Filter()) or "")


@pytest.mark.parametrize("name", ["types", "ddl", "shop"])
def test_generated_tables_are_those_of_the_recording(
    session: MySQLSession, tmp_path: Path, name: str
) -> None:
    relay = land(RECORDINGS / name, f"file://{tmp_path}/relay", 100_000)
    window = relay.first()
    assert window is not None
    session.query("CREATE DATABASE gen")
    created = 0
    for ddl in RecordedSchema.from_window(window).ddls:
        for table in ddl.effect.tables.values():
            if (
                table is None
                or not table.is_base_table
                or table.schema_name == "mysql"
                or table.name == "sqt"
            ):
                continue
            table = replace(table, schema_name="gen", name=f"{table.name[:20]}_{created}")
            statement, _ = create_table(table, MARIADB)
            session.execute(statement)
            actual = actual_columns(session, table)
            assert [c.name for c in actual] == [
                c.name for c in table.columns if c.public and not c.hidden
            ]
            assert wrong_collations(table, actual, MARIADB) == []
            created += 1
    assert created >= 4


class Crash(Exception):
    """Stands for the end of the process."""


class CrashingSink(MySQLSession):
    """Dies around the first statement that `hits`: before it reached the server, or after it ran
    there.
    """

    def __init__(self, downstream: Any, hits: Callable[[str], bool], after: bool) -> None:
        super().__init__(downstream)
        self._hits, self._after = hits, after

    def execute(self, statement: str | bytes) -> int:
        text = statement if isinstance(statement, str) else statement.decode()
        if not self._hits(text):
            return super().execute(statement)
        if self._after:
            super().execute(statement)
        raise Crash


def ddl_step(
    kind: int,
    query: str,
    table: str,
    effect: dict[str, Any],
    before: dict[str, Any] | None = None,
    ts: int = 100,
) -> Step:
    return Step(
        ScopedDdl.from_json(
            {
                "commit_ts": ts,
                "job_id": 5,
                "type": kind,
                "query": query,
                "schema_version": 6,
                "schema_state": 5,
                "schema_name": "d",
                "table_name": table,
                "effect": {"schemas": {}, "tables": effect},
                "before": before or {},
            }
        ),
        ts,
    )


def described(table_id: int, name: str, *columns: str) -> dict[str, Any]:
    kept = tuple(
        Column(i + 1, column, i, 3, 3 if column == "id" else 0) for i, column in enumerate(columns)
    )
    return Table(table_id, 1, "d", name, kept, pk_is_handle=True).to_json()


ADD = ddl_step(
    5,
    "ALTER TABLE `t` ADD COLUMN `c` INT",
    "t",
    {"9": described(9, "t", "id", "c")},
    {"9": described(9, "t", "id")},
)
SWAP = ddl_step(
    47,
    "RENAME TABLE `t` TO `x`, `u` TO `t`, `x` TO `u`",
    "t",
    {"9": described(9, "u", "id"), "8": described(8, "t", "id")},
    {"9": described(9, "t", "id"), "8": described(8, "u", "id")},
)
DROP = ddl_step(4, "DROP TABLE `t`, `u`", "t", {"9": None}, {"9": described(9, "t", "id")})
TRUNCATE = ddl_step(
    11,
    "TRUNCATE TABLE `t`",
    "t",
    {"9": None, "10": described(10, "t", "id")},
    {"9": described(9, "t", "id")},
)
DROP_DATABASE = ddl_step(
    2,
    "DROP DATABASE `d`",
    "",
    {"9": None, "8": None},
    {"9": described(9, "t", "id"), "8": described(8, "u", "id")},
)
FLOATS = (
    Column(1, "id", 0, 3, 3),
    Column(2, "f", 1, 4),
    Column(3, "f", 1, 15, 0, 20, 0, "utf8mb4", "utf8mb4_bin"),
)
SPELL = ddl_step(
    12,
    "ALTER TABLE `v` MODIFY COLUMN `f` VARCHAR(20)",
    "v",
    {"7": Table(7, 1, "d", "v", (FLOATS[0], FLOATS[2]), pk_is_handle=True).to_json()},
    {"7": Table(7, 1, "d", "v", FLOATS[:2], pk_is_handle=True).to_json()},
)
CASES = {
    **{
        f"another type, {part}": (
            SPELL,
            part,
            lambda s: (
                s.query("SELECT f FROM d.v") == [("16777216",)]
                and not s.query("SHOW TABLES FROM sluice_recycle")
            ),
        )
        for part in (
            "CREATE TABLE `sluice_recycle`.`swapped_",
            "CREATE TABLE `sluice_recycle`.`new_",
            "ADD COLUMN `sluice_new_",
            "UPDATE `d`.`v`",
            "INSERT IGNORE INTO `sluice_recycle`.`swapped_",
            "DROP COLUMN",
            "VARCHAR(20)",
            "DROP TABLE",
        )
    },
    "truncate table": (
        TRUNCATE,
        "RENAME TABLE",
        lambda s: (
            s.query("SELECT * FROM d.t") == []
            and s.query("SELECT id FROM sluice_recycle.t9_0") == [(1,)]
        ),
    ),
    "drop database, a table": (
        DROP_DATABASE,
        "RENAME TABLE",
        lambda s: (
            s.query("SHOW TABLES FROM sluice_recycle") == [("t8_0",), ("t9_0",)]
            and not s.query("SHOW DATABASES LIKE 'd'")
        ),
    ),
    "drop database, itself": (
        DROP_DATABASE,
        "DROP DATABASE",
        lambda s: (
            s.query("SHOW TABLES FROM sluice_recycle") == [("t8_0",), ("t9_0",)]
            and not s.query("SHOW DATABASES LIKE 'd'")
        ),
    ),
    "add column": (
        ADD,
        "ADD COLUMN",
        lambda s: (
            [
                c
                for (c,) in s.query(
                    "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA='d' AND"
                    " TABLE_NAME='t' ORDER BY ORDINAL_POSITION"
                )
            ]
            == ["id", "c"]
        ),
    ),
    "rename that swaps equal tables": (
        SWAP,
        "RENAME TABLE",
        lambda s: s.query("SELECT * FROM d.t") == [(2,)] and s.query("SELECT * FROM d.u") == [(1,)],
    ),
    "drop table": (
        DROP,
        "RENAME TABLE",
        lambda s: (
            s.query("SHOW TABLES FROM d") == [("u",), ("v",)]
            and s.query("SELECT * FROM d.u") == [(2,)]
        ),
    ),
}


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize(
    "after", [False, True], ids=["before the statement", "after the statement"]
)
@pytest.mark.parametrize("name", list(CASES))
def test_a_statement_runs_exactly_once_whenever_the_process_dies(
    mariadb: MariaDBServer, session: MySQLSession, name: str, after: bool
) -> None:
    step, verb, holds = CASES[name]
    for statement in (
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id int PRIMARY KEY)",
        "CREATE TABLE d.u (id int PRIMARY KEY)",
        "CREATE TABLE d.v (id int PRIMARY KEY, f float)",
        "INSERT INTO d.v VALUES (1, 16777216)",
        "INSERT INTO d.t VALUES (1)",
        "INSERT INTO d.u VALUES (2)",
        "COMMIT",
    ):
        session.query(statement)
    dying = CrashingSink(mariadb.downstream, lambda text: verb in text, after)
    first = MySQLSink(dying, CheckpointTable(dying, 7), Filter())
    first.recover()
    try:
        with pytest.raises(Crash):
            first.run([step])
    finally:
        dying.close()
    table = CheckpointTable(session, 7)
    left = table.load()
    assert left is not None
    assert (left.commit_ts, left.pending is not None) == (99, True)
    second = MySQLSink(session, table, Filter())
    assert second.recover() == left
    second.run([step])
    assert holds(session)
    done = table.load()
    assert done is not None
    assert (done.commit_ts, done.pending) == (100, None)


def test_a_dropped_table_comes_back_with_its_rows_and_is_removed_for_good_later(
    session: MySQLSession,
) -> None:
    for statement in (
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id int PRIMARY KEY)",
        "INSERT INTO d.t VALUES (1)",
        "COMMIT",
    ):
        session.query(statement)
    applier = MySQLSink(session, CheckpointTable(session, 7), Filter(), keep_dropped_s=3600)
    applier.recover()
    hour = 3600_000 << 18
    table = described(9, "t", "id")
    applier.run([ddl_step(4, "DROP TABLE `t`", "t", {"9": None}, {"9": table}, ts=10 * hour)])
    assert session.query("SHOW TABLES FROM d") == []
    applier.run([ddl_step(25, "RECOVER TABLE `t`", "t", {"9": table}, ts=10 * hour + 1)])
    assert session.query("SELECT * FROM d.t") == [(1,)]
    applier.run([ddl_step(4, "DROP TABLE `t`", "t", {"9": None}, {"9": table}, ts=10 * hour + 2)])
    assert len(session.query(f"SHOW TABLES FROM {session.recycle_schema}")) == 1
    applier.run([Step(CommitDetail(1), 12 * hour)])
    assert session.query(f"SHOW TABLES FROM {session.recycle_schema}") == []
    with pytest.raises(DdlError, match="copy the table"):
        applier.run([ddl_step(25, "RECOVER TABLE `t`", "t", {"9": table}, ts=12 * hour + 1)])


def test_dropped_tables_of_two_who_write_to_one_server_are_kept_apart(
    mariadb: MariaDBServer,
) -> None:
    """Both drop a table with the same id in the same second, and each brings its own back."""
    hour = 3600_000 << 18
    for n, schema in enumerate(("d", "e")):
        session = MySQLSession(replace(mariadb.downstream, recycle_schema=f"kept_{schema}"))
        session.connect()
        session.query(f"CREATE DATABASE {schema}")
        session.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
        session.query(f"INSERT INTO {schema}.t VALUES ({n})")
        session.query("COMMIT")
        RecycleBin(session, 3600).drop(schema, "t", 9, hour)
        session.close()
    for n, schema in enumerate(("d", "e")):
        session = MySQLSession(replace(mariadb.downstream, recycle_schema=f"kept_{schema}"))
        session.connect()
        assert RecycleBin(session, 3600).recover(schema, "t", 9)
        assert session.query(f"SELECT * FROM {schema}.t") == [(n,)]
        session.close()


def test_what_cannot_be_done_is_an_error_that_says_where_and_how_to_go_on(
    session: MySQLSession,
) -> None:
    for statement in (
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id int PRIMARY KEY, c int)",
        "INSERT INTO d.t VALUES (1, 2), (2, 2)",
        "COMMIT",
    ):
        session.query(statement)
    applier = MySQLSink(session, CheckpointTable(session, 7), Filter())
    applier.recover()
    keyed = described(9, "t", "id", "c") | {
        "indexes": [{"id": 1, "name": "uc", "columns": [["c", 1, -1]], "unique": True}]
    }
    with pytest.raises(DdlError) as caught:
        applier.run(
            [
                ddl_step(
                    7,
                    "CREATE UNIQUE INDEX `uc` ON `t` (`c`)",
                    "t",
                    {"9": keyed},
                    {"9": described(9, "t", "id", "c")},
                )
            ]
        )
    text = str(caught.value)
    for part in ("job 5", "commit_ts 100", "1062", "CREATE UNIQUE INDEX `uc` ON `t` (`c`)", "Hint"):
        assert part in text
    with pytest.raises(DdlError, match="job type 99 doesn't name"):
        applier.run([ddl_step(99, "ALTER TABLE `t` DO SOMETHING NEW", "t", {})])


def test_reorganizing_a_table_of_which_tidb_may_keep_rows_twice_stops_until_an_operator_replaces_it(
    session: MySQLSession,
) -> None:
    for statement in ("CREATE DATABASE d", "CREATE TABLE d.t (id int PRIMARY KEY)", "COMMIT"):
        session.query(statement)
    applier = MySQLSink(session, CheckpointTable(session, 7), Filter())
    applier.recover()
    own = {"9": described(9, "t", "id")}
    step = ddl_step(64, "ALTER TABLE `t` REORGANIZE PARTITION `p0` INTO (…)", "t", own, own)
    marked = replace(step, detail=replace(step.detail_of(ScopedDdl), row_ids_differ=True))
    for _ in range(2):  # the refusal leaves no marker that lets the next attempt pass
        with pytest.raises(DdlError, match="hidden row id") as caught:
            applier.run([marked])
        assert "`sluice ddl replace 100 --sql" in caught.value.hint
        assert "`sluice backfill --table d.t`" in caught.value.hint
    statements = ("ALTER TABLE d.t COMMENT = 'split'",)
    applier.run(
        [replace(marked, detail=replace(marked.detail_of(ScopedDdl), replaced_by=statements))]
    )
    assert "split" in str(session.query("SHOW CREATE TABLE d.t"))


def test_rows_get_the_moment_at_which_a_column_was_added(session: MySQLSession) -> None:
    for statement in (
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id int PRIMARY KEY)",
        "INSERT INTO d.t VALUES (1)",
        "COMMIT",
    ):
        session.query(statement)
    old = Table(9, 1, "d", "t", (Column(1, "id", 0, 3, 3),), pk_is_handle=True)
    added = Column(
        2,
        "at",
        1,
        7,
        8192,
        decimal=3,
        default="CURRENT_TIMESTAMP",
        origin_default="2024-05-06 07:08:09.123",
        version=2,
    )
    new = replace(old, columns=(*old.columns, added))
    applier = MySQLSink(session, CheckpointTable(session, 7), Filter())
    applier.recover()
    query = (
        "ALTER TABLE `t` ADD COLUMN `at` TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE"
        " CURRENT_TIMESTAMP(3)"
    )
    applier.run([ddl_step(5, query, "t", {"9": new.to_json()}, {"9": old.to_json()})])
    assert session.query("SELECT CAST(at AS CHAR) FROM d.t") == [("2024-05-06 07:08:09.123",)]
    assert session.query("SELECT ABS(UNIX_TIMESTAMP() - UNIX_TIMESTAMP(SYSDATE())) < 5") == [(1,)]


def test_values_that_tidb_shortened_are_shortened(session: MySQLSession) -> None:
    for statement in (
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id int PRIMARY KEY, c varchar(20))",
        "INSERT INTO d.t VALUES (1, 'too long')",
        "COMMIT",
    ):
        session.query(statement)
    table = json.loads(
        json.dumps(
            Table(
                9,
                1,
                "d",
                "t",
                (Column(1, "id", 0, 3, 3), Column(2, "c", 1, 15, 0, 3)),
                pk_is_handle=True,
            ).to_json()
        )
    )
    before = json.loads(json.dumps(table).replace('"flen": 3', '"flen": 20'))
    applier = MySQLSink(session, CheckpointTable(session, 7), Filter())
    applier.recover()
    written = applier.run(
        [
            ddl_step(
                12, "ALTER TABLE `t` MODIFY COLUMN `c` VARCHAR(3)", "t", {"9": table}, {"9": before}
            )
        ]
    )
    assert session.query("SELECT c FROM d.t") == [("too",)]
    assert "converted" in written.warnings[0]
    assert "STRICT_TRANS_TABLES" in session.query("SELECT @@sql_mode")[0][0]

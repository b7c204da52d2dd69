"""Statements of tables with a column rule, as files have them, make the table that a sink makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as tried
from hypothesis import strategies as st
from pymysql.constants import CLIENT

from sluice.etl.apply import run_apply
from sluice.etl.changes.formats.binlog_file import list_files, read_file
from sluice.etl.downstream.ddl import DdlError
from sluice.etl.settings import Downstream, File, Relay, Settings, Upstream
from sluice.etl.settings.rules import parse_filter
from sluice.tidb import pb
from sluice.tidb.ddl_actions import Action
from sluice.tidb.schema import Table
from tests.etl.apply.drawn_table import KINDS, DrawnTable
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, partitioned, table
from tests.examples import examples


def settings_of(story: Story, rule: dict[str, Any], folder: Path | None = None) -> Settings:
    settings = Settings(
        Upstream("unused"),
        Relay(story.url),
        story.server.downstream,
        filters=parse_filter({"columns": [{"tables": ["d.t*"], **rule}]})[0],
    )
    if folder is None:
        return settings
    return replace(settings, downstream=Downstream(type="file"), file=File(dir=str(folder)))


def apply(settings: Settings) -> list[str]:
    """Apply all, and return the warnings."""
    last = settings.open_relay().last()
    assert last is not None
    summary = run_apply(
        settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings)
    )
    return list(summary.warnings)


def recorded(folder: Path) -> Iterator[str]:
    """The statements in the files."""
    for path in list_files(folder):
        for _, message in read_file(path):
            binlog = pb.file_binlog.Binlog.FromString(bytes(message))
            if binlog.tp == pb.file_binlog.DDL:
                yield binlog.ddl_query.decode()


def definition(server: MariaDBServer) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW CREATE TABLE d.t")
        return str(cursor.fetchall()[0][1])


@pytest.mark.quick_cases(every=4)
@pytest.mark.parametrize("kind", KINDS)
def test_executed_statements_leave_the_table_that_the_rule_leaves(
    mariadb: MariaDBServer, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    @tried(deadline=None, max_examples=examples(8), suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        mariadb.empty()
        folder = tmp_path_factory.mktemp("story")
        story = Story(mariadb, folder)
        # its statements are none: with a column that is always shaped they are made anew
        upstream = DrawnTable(story, kind, data, "z int")
        names = [*"abcde", *(f"x{n}" for n in range(3, 13))]
        some = data.draw(st.lists(st.sampled_from(names), unique=True))
        whole = {*names, "z"}
        shown = set(some) if data.draw(st.booleans()) else whole - set(some)
        renamed = data.draw(st.lists(st.sampled_from(sorted(shown)), unique=True)) if shown else []
        if "z" in shown and "z" not in renamed:
            renamed.append("z")
        unnamed = whole - shown | set(renamed)
        rule = {
            **({"keep": ["id", *shown]} if shown and data.draw(st.booleans()) else {}),
            "rename": {name: f"r_{name}" for name in renamed},
        }
        if "keep" not in rule:
            rule["leave-out"] = [*(whole - shown)]
        for _ in range(data.draw(st.integers(1, 8))):
            upstream.statement()
        apply(settings_of(story, rule))
        expected = definition(mariadb)
        mariadb.empty()
        apply(settings_of(story, rule, folder / "files"))
        with (
            mariadb.connect(client_flag=CLIENT.MULTI_STATEMENTS) as connection,
            connection.cursor() as cursor,
        ):
            for statement in recorded(folder / "files"):
                words = set(re.findall(r"\w+", re.sub("`d`[.;]", "", statement)))
                assert not unnamed & words
                cursor.execute(statement)
                while cursor.nextset():
                    pass
        assert definition(mariadb) == expected

    check()


PARTITIONED = table(
    11, "t", "id int", "a int", "b int", primary="id",
    partition=partitioned(1, "`id`", (21, "p0", "10"), (22, "p1", "20")),
)  # fmt: skip


def statements_of(
    server: MariaDBServer, folder: Path, kind: int, query: str, after: Table, before: Table
) -> list[str]:
    story = Story(server, folder)
    story.create(before, "CREATE TABLE t (id int, a int, b int)")
    story.statement(kind, query, after)
    settings = settings_of(story, {"leave-out": ["b"], "rename": {"A": "x"}}, folder / "files")
    apply(settings)
    return [one.partition("; ")[2] for one in recorded(folder / "files")]


def test_a_statement_about_other_things_than_columns_stays_as_it_is(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    fewer = replace(PARTITIONED, partition=partitioned(1, "`id`", (22, "p1", "20")))
    query = "alter table t drop partition p0"
    found = statements_of(mariadb, tmp_path, Action.DROP_PARTITION, query, fewer, PARTITIONED)
    assert found[-1] == f"{query};"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (`B` > 0)", "b, which .* leaves out"),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (`A` > 0)", "a, which .* renames"),
        ("ALTER TABLE t /*T![ttl] TTL=`b` + INTERVAL 1 DAY */", "b, which .* leaves out"),
    ],
)
def test_a_statement_that_names_a_column_readers_do_not_know_stops_with_the_way_out(
    mariadb: MariaDBServer, tmp_path: Path, query: str, why: str
) -> None:
    kind = Action.ADD_CHECK_CONSTRAINT if "CHECK" in query else Action.ALTER_TTL
    with pytest.raises(DdlError, match=f"names column {why}, so a reader") as raised:
        statements_of(mariadb, tmp_path, kind, query, PARTITIONED, PARTITIONED)
    assert "sluice ddl replace" in raised.value.hint


def test_what_a_statement_cannot_say_is_a_warning(mariadb: MariaDBServer, tmp_path: Path) -> None:
    story = Story(mariadb, tmp_path)
    hidden = table(11, "t", "id int", "a int", "b int", "h int", primary="id")
    columns = tuple(
        replace(c, hidden=True, generated="`a` + 1") if c.name == "h" else c for c in hidden.columns
    )
    index = table(1, "i", "id int", "a int", "b int", "h int", unique=("h",)).indexes
    story.create(replace(hidden, columns=columns, indexes=index), "CREATE TABLE t (...)")
    settings = settings_of(story, {"leave-out": ["b"]}, tmp_path / "files")
    assert any("is on an expression: left out" in one for one in apply(settings))

"""Rows of merged tables that a column keeps apart: a model in Python judges the merged table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.errors import SluiceError
from sluice.etl.changes.rules import Filter, Route, Routes, rules_digest
from sluice.etl.settings import Settings, SettingsError, parse_settings
from sluice.etl.settings.rules import RuleError, parse_routes
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.ddl_actions import Action
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from tests.etl.apply.ruled_columns import apply, names
from tests.etl.apply.ruled_columns import settings_of as ruled
from tests.etl.apply.test_safe_mode import forget, leave_checkpoint
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Row, Story, column, partitioned, table, wider
from tests.examples import examples

ROUTE = {
    "schema-pattern": "d",
    "table-pattern": "t*",
    "target-schema": "d",
    "target-table": "all",
    "source-column": "origin",
}
MODES = pytest.mark.parametrize(
    "mode", ["atomic", pytest.param("parallel", marks=pytest.mark.slow)]
)


def settings_of(story: Story, mode: str = "atomic", **route: str) -> Settings:
    return ruled(story, mode=mode, routes=parse_routes([ROUTE | route]))


@dataclass
class Sources:
    """Two tables upstream with the same keys, and their rows."""

    story: Story
    tables: list[Table]
    data: st.DataObject
    rows: list[dict[int, Row]] = field(default_factory=lambda: [{}, {}])
    rowid: int = 0

    def transaction(self) -> None:
        encoded = [
            change for _ in range(self.data.draw(st.integers(1, 6))) for change in self.change()
        ]
        self.story.changes(*encoded)

    def change(self) -> list[tuple[Table, int, bytes]]:
        which = self.data.draw(st.integers(0, 1))
        made, rows = self.tables[which], self.rows[which]
        taken = {row["u"] for row in rows.values()}
        new: Row = {
            "k": self.data.draw(st.sampled_from([1, 2, 3])),
            "u": self.data.draw(st.sampled_from([None, *({1, 2, 3, 4} - taken)])),
            "v": self.data.draw(st.sampled_from([None, "x", "é"])),
        }
        there = rows.get(new["k"])
        if there is None:
            self.rowid += 1
            new["_tidb_rowid"] = self.rowid
            rows[new["k"]] = new
            return [(made, INSERT, encode_insert(made, new))]
        if self.data.draw(st.booleans()):
            del rows[new["k"]]
            return [(made, DELETE, encode_delete(made, there))]
        new["_tidb_rowid"] = there["_tidb_rowid"]
        rows[new["k"]] = new
        return [(made, UPDATE, encode_update(made, there, new))]

    def wanted(self) -> list[tuple[Any, ...]]:
        return sorted(
            (
                (row["k"], row["u"], row["v"], made.full_name)
                for made, rows in zip(self.tables, self.rows, strict=True)
                for row in rows.values()
            ),
            key=repr,
        )


def made_of(number: int, *, clustered: bool) -> Table:
    return table(
        10 + number, f"t{number}", "k int", "u int", "v varchar(9)", primary="k",
        clustered=clustered, unique=("u",),
    )  # fmt: skip


def story_of(server: MariaDBServer, folder: Path, *, clustered: bool = True) -> Story:
    story = Story(server, folder)
    for number in (1, 2):
        story.create(made_of(number, clustered=clustered), f"CREATE TABLE t{number} (...)")
    return story


@pytest.mark.quick_cases("True-atomic")
@MODES
@pytest.mark.parametrize("clustered", [True, False])
def test_random_histories_of_two_sources_with_the_same_keys_leave_the_rows_of_both(
    mariadb: MariaDBServer,
    tmp_path_factory: pytest.TempPathFactory,
    clustered: bool,
    mode: str,
) -> None:
    @tried(
        deadline=None,
        max_examples=examples(12),
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        mariadb.empty()
        story = story_of(mariadb, tmp_path_factory.mktemp("story"), clustered=clustered)
        tables = [made_of(number, clustered=clustered) for number in (1, 2)]
        upstream, settings = Sources(story, tables, data), settings_of(story, mode)
        for _ in range(data.draw(st.integers(1, 8))):
            upstream.transaction()
            if data.draw(st.integers(0, 2)) == 0:
                apply(story, settings)
        apply(story, settings)
        assert story.rows("all") == upstream.wanted()

    check()


ONE, TWO = (made_of(number, clustered=True) for number in (1, 2))
SHOWN = "k, v, origin"


def test_statements_of_one_source_change_its_rows_alone(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story)
    story.insert(ONE, {"k": 1, "u": 1, "v": "a"}, {"k": 2, "u": 2, "v": "b"})
    story.insert(TWO, {"k": 1, "u": 1, "v": "c"})
    apply(story, settings)
    assert names(mariadb, "all") == ["k", "u", "v", "origin"]
    assert story.rows("all", SHOWN) == [(1, "a", "d.t1"), (1, "c", "d.t2"), (2, "b", "d.t1")]
    renamed = replace(TWO, name="t9")
    story.statement(Action.RENAME_TABLE, "RENAME TABLE t2 TO t9", renamed)
    story.insert(renamed, {"k": 3, "u": 3, "v": "d"})
    apply(story, settings)
    assert story.rows("all", SHOWN) == [
        (1, "a", "d.t1"), (1, "c", "d.t9"), (2, "b", "d.t1"), (3, "d", "d.t9"),
    ]  # fmt: skip
    emptied = replace(ONE, id=21)
    story.statement(Action.TRUNCATE_TABLE, "TRUNCATE TABLE t1", ONE.id, emptied)
    story.insert(emptied, {"k": 5, "u": 1, "v": "e"})
    apply(story, settings)
    assert story.rows("all", SHOWN) == [(1, "c", "d.t9"), (3, "d", "d.t9"), (5, "e", "d.t1")]
    story.statement(Action.DROP_TABLE, "DROP TABLE t9", TWO.id, name="t9")
    apply(story, settings)
    assert story.rows("all", SHOWN) == [(5, "e", "d.t1")]
    story.statement(Action.RECOVER_TABLE, "FLASHBACK TABLE t9", renamed, name="t9")
    with pytest.raises(SluiceError, match=r"brings back rows of d\.t9, which were removed"):
        apply(story, settings)


@MODES
def test_a_column_that_sources_add_one_after_another_is_there_from_the_first_on(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, mode)
    story.insert(TWO, {"k": 1, "u": 1, "v": "c"})
    one, two = (wider(made, column(4, "w int")) for made in (ONE, TWO))
    story.statement(Action.ADD_COLUMN, "ALTER TABLE t1 ADD w int", one)
    story.insert(one, {"k": 1, "u": 1, "v": "a", "w": 7})
    story.update(TWO, {"k": 1, "u": 1, "v": "c"}, {"v": "d"})
    apply(story, settings)
    assert story.rows("all", "k, v, w, origin") == [(1, "a", 7, "d.t1"), (1, "d", None, "d.t2")]
    story.statement(Action.ADD_COLUMN, "ALTER TABLE t2 ADD w int", two)
    story.update(two, {"k": 1, "u": 1, "v": "d", "w": None}, {"w": 8})
    apply(story, settings)
    assert story.rows("all", "k, v, w, origin") == [(1, "a", 7, "d.t1"), (1, "d", 8, "d.t2")]


def test_sources_with_other_columns_make_a_table_with_all_of_them(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    one = table(11, "t1", "k int", "v varchar(9)", "a int", primary="k")
    two = table(12, "t2", "b int not null", "k int", "v varchar(9) not null", primary="k")
    three = table(13, "t3", "k int", "v varchar(8)", primary="k")
    for made in (one, two):
        story.create(made, f"CREATE TABLE {made.name} (...)")
    story.insert(one, {"k": 1, "v": "x", "a": 7})
    story.insert(two, {"k": 1, "v": "y", "b": 8})
    apply(story, settings_of(story))
    assert story.rows("all", "k, v, a, b, origin") == [
        (1, "x", 7, None, "d.t1"), (1, "y", None, 8, "d.t2"),
    ]  # fmt: skip
    story.create(three, "CREATE TABLE t3 (...)")
    with pytest.raises(SluiceError, match=r"column v is varchar\(9\).* varchar\(8\)"):
        apply(story, settings_of(story))


@MODES
def test_a_column_that_sources_rename_one_after_another_is_there_under_both_names(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, mode)
    for made in (ONE, TWO):
        story.insert(made, {"k": 1, "u": 1, "v": made.name})
    one, two = (
        replace(
            made,
            columns=tuple(
                replace(each, name="w") if each.name == "v" else each for each in made.columns
            ),
        )
        for made in (ONE, TWO)
    )
    story.statement(Action.MODIFY_COLUMN, "ALTER TABLE t1 CHANGE v w varchar(9)", one)
    story.insert(one, {"k": 2, "u": 2, "w": "a"})
    story.insert(TWO, {"k": 2, "u": 2, "v": "b"})
    apply(story, settings)
    shown = "k, v, w, origin"
    assert story.rows("all", shown) == [
        (1, "t1", "t1", "d.t1"), (1, "t2", None, "d.t2"), (2, "b", None, "d.t2"),
        (2, None, "a", "d.t1"),
    ]  # fmt: skip
    story.statement(Action.MODIFY_COLUMN, "ALTER TABLE t2 CHANGE v w varchar(9)", two)
    story.insert(two, {"k": 3, "u": 3, "w": "c"})
    apply(story, settings)
    assert story.rows("all", "k, w, origin") == [
        (1, "t1", "d.t1"), (1, "t2", "d.t2"), (2, "a", "d.t1"), (2, "b", "d.t2"), (3, "c", "d.t2"),
    ]  # fmt: skip


@MODES
def test_rows_of_a_source_have_its_own_default_in_a_column_that_another_added_before(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, mode)
    for made in (ONE, TWO):
        story.insert(made, {"k": 1, "u": 1, "v": "x"})
    one = wider(ONE, column(4, "w int", default="5", origin_default="5"))
    two = wider(TWO, column(4, "w int", default="7", origin_default="7"))
    story.statement(Action.ADD_COLUMN, "ALTER TABLE t1 ADD w int DEFAULT 5", one)
    story.insert(TWO, {"k": 2, "u": 2, "v": "y"})
    apply(story, settings)
    story.statement(Action.ADD_COLUMN, "ALTER TABLE t2 ADD w int DEFAULT 7", two)
    story.insert(two, {"k": 3, "u": 3, "v": "z", "w": None})
    apply(story, settings)
    assert story.rows("all", "k, w, origin") == [
        (1, 5, "d.t1"), (1, 7, "d.t2"), (2, 7, "d.t2"), (3, None, "d.t2"),
    ]  # fmt: skip


def test_changes_that_are_written_twice_leave_the_same_rows(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story)
    apply(story, settings)
    start = story.now
    for made in (ONE, TWO):
        story.insert(made, {"k": 1, "u": 1, "v": "a"}, {"k": 2, "u": 2, "v": "b"})
        story.delete(made, {"k": 1, "u": 1, "v": "a"})
        story.insert(made, {"k": 3, "u": 1, "v": made.name})
    apply(story, settings)
    wanted = story.rows("all")
    assert len(wanted) == 4
    with mariadb.connect() as connection:  # as a Drainer leaves it that was killed there
        leave_checkpoint(connection, start, sluice={"safe-until": story.now})
        connection.commit()
    forget(story.url)
    apply(story, settings)
    assert story.rows("all") == wanted


REFUSED = {
    "no primary key": table(11, "t", "k int", "v int"),
    "a column of this name": table(11, "t", "k int", "Origin int", primary="k"),
    "it is partitioned": replace(
        table(11, "t", "k int", primary="k"), partition=partitioned(1, "k", (31, "p", "9"))
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_table_that_cant_have_the_column_stops_at_its_statement(
    mariadb: MariaDBServer, tmp_path: Path, why: str
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(REFUSED[why], "CREATE TABLE t (...)")
    with pytest.raises(SluiceError, match=rf"keeps rows of d\.t apart by column origin: .*{why}"):
        apply(story, settings_of(story))


def test_rules_for_one_target_that_dont_agree_on_the_column_are_refused() -> None:
    routes = parse_routes([ROUTE | {"table-pattern": "t1"}, ROUTE | {"source-column": "Source"}])
    with pytest.raises(SluiceError, match="not the same source-column"):
        routes.target("d", "t1")
    with pytest.raises(RuleError, match="without target-table no tables are merged"):
        parse_routes([{"schema-pattern": "s*", "target-schema": "d", "source-column": "o"}])


def test_topics_and_files_have_no_source_column() -> None:
    document = {
        "upstream": {"pd-urls": "-"},
        "relay": {"url": "file:///relay"},
        "downstream": {"type": "file"},
        "file": {"dir": "/out"},
        "route": [ROUTE],
    }
    with pytest.raises(SettingsError, match="source-column is for databases alone"):
        parse_settings(document, "sluice.toml")


def test_routes_without_the_column_have_the_digest_that_former_versions_wrote() -> None:
    routes = Routes((Route("d", "t*", "d", "all", "[[route]] 1"),))
    assert rules_digest(Filter(), routes) == "9b6ab4424fcee5b8"

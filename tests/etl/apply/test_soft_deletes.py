"""Deleted rows stay, marked with the time of their commit: a model in Python judges the table."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.errors import SluiceError
from sluice.etl.changes.rules import ColumnRuleError, Route, Routes, rules_digest
from sluice.etl.settings import SettingsError, parse_settings
from sluice.etl.settings.rules import RuleError, parse_filter
from sluice.relay import DELETE, UPDATE
from sluice.tidb.ddl_actions import Action
from sluice.tidb.rows import encode_delete, encode_update
from sluice.tidb.schema import Index, Table
from tests.etl.apply.ruled_columns import apply, names, settings_of
from tests.etl.apply.soft_deleted import KEYS, Drawn, made_of, time_of
from tests.etl.apply.test_safe_mode import forget, leave_checkpoint
from tests.etl.downstream.ddl.test_partition_changes import exchanged
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, SECTION, VARIABLE
from tests.etl.story import Row, Story, column, partitioned, table, wider
from tests.examples import examples

RULE = {"soft-delete": "gone"}
UNMARK = "UPDATE d.t SET gone = NULL"
PEOPLE = table(11, "t", "id int", "a varchar(9)", "u int", primary="id", unique=("u",))


@pytest.mark.quick_cases("any case-False-atomic")
@pytest.mark.parametrize("mode", ["atomic", pytest.param("parallel", marks=pytest.mark.slow)])
@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("kind", KEYS)
def test_random_histories_leave_every_row_with_the_time_of_its_delete(
    mariadb: MariaDBServer,
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
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
        story = Story(mariadb, tmp_path_factory.mktemp("story"))
        made = made_of(kind, clustered=clustered)
        story.create(made, "CREATE TABLE t (...)")
        upstream, settings = Drawn(story, kind, made, data), settings_of(story, RULE, mode=mode)
        for _ in range(data.draw(st.integers(1, 8))):
            upstream.transaction()
            if data.draw(st.integers(0, 2)) == 0:
                apply(story, settings)
        apply(story, settings)
        assert story.rows("t") == upstream.wanted()

    check()


def story_of(server: MariaDBServer, folder: Path, made: Table = PEOPLE) -> Story:
    story = Story(server, folder)
    story.create(made, "CREATE TABLE t (...)")
    return story


def test_a_deleted_row_keeps_its_values_until_its_key_comes_again(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    story.insert(PEOPLE, {"id": 1, "a": "x", "u": 5}, {"id": 2, "a": None, "u": 6})
    apply(story, settings)
    assert names(mariadb) == ["id", "a", "u", "gone"]
    story.idle(story.now + (2_250 << 18))
    story.delete(PEOPLE, {"id": 1, "a": "x", "u": 5})
    apply(story, settings)
    gone = datetime(1982, 9, 4, 15, 6, 42, 250_000)
    assert story.rows("t") == [(1, "x", 5, gone), (2, None, 6, None)]
    story.insert(PEOPLE, {"id": 3, "a": "u", "u": 5})  # the value of the row that is gone
    story.insert(PEOPLE, {"id": 1, "a": "y", "u": None})
    apply(story, settings)
    assert story.rows("t") == [(1, "y", None, None), (2, None, 6, None), (3, "u", 5, None)]


def test_rows_that_exchange_their_keys_are_living_in_any_order_of_changes(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    made = table(11, "t", "id int", "v int", primary="id", clustered=False)
    story = story_of(mariadb, tmp_path, made)
    one, two, three = ({"id": n, "v": n, "_tidb_rowid": n} for n in (1, 2, 3))
    story.insert(made, one, two, three)
    story.changes(  # as TiKV has it: by row id
        (made, UPDATE, encode_update(made, one, one | {"id": 2})),
        (made, UPDATE, encode_update(made, two, two | {"id": 3})),
        (made, DELETE, encode_delete(made, three)),
    )
    apply(story, settings_of(story, RULE))
    rows = story.rows("t", "id, v, gone IS NULL")
    assert rows == [(1, 1, 0), (2, 1, 1), (3, 2, 1)]


@pytest.mark.parametrize("damage", ["", "DELETE FROM d.t WHERE id = 3", UNMARK])
def test_changes_that_are_written_twice_leave_the_same_rows(
    mariadb: MariaDBServer, tmp_path: Path, damage: str
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    apply(story, settings)
    start = story.now
    for number in range(1, 4):
        story.insert(PEOPLE, {"id": number, "a": "x", "u": number})
    story.delete(PEOPLE, {"id": 1, "a": "x", "u": 1}, {"id": 2, "a": "x", "u": 2})
    story.insert(PEOPLE, {"id": 2, "a": "y", "u": 1})
    if not damage:  # behind it, Sluice looks whether the rows are there
        more = wider(PEOPLE, column(4, "d int"))
        story.statement(Action.ADD_COLUMN, "ALTER TABLE t ADD d int", more)
    apply(story, settings)
    shown = "id, a, u, gone"
    left = story.rows("t", shown)
    assert [row[:3] for row in left] == [(1, "x", 1), (2, "y", 1), (3, "x", 3)]
    assert [row[3] is None for row in left] == [False, True, True]
    with mariadb.connect() as connection:  # as a Drainer leaves it that was killed there
        leave_checkpoint(connection, start, sluice={"safe-until": story.now})
        if damage:
            connection.cursor().execute(damage)
        connection.commit()
    forget(story.url)
    apply(story, settings)
    assert story.rows("t", shown) == left


def test_statements_reach_rows_that_are_gone_and_truncate_marks_all(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    story.insert(PEOPLE, {"id": 1, "a": "x", "u": 1}, {"id": 2, "a": "x", "u": 2})
    story.delete(PEOPLE, {"id": 1, "a": "x", "u": 1})
    first = time_of(story.now)
    story.insert(PEOPLE, {"id": 3, "a": "z", "u": 1})
    more = wider(PEOPLE, column(4, "d int not null", origin_default="7", default="7"))
    indexes = (*more.indexes, Index(9, "ud", (("u", 2, -1), ("d", 3, -1)), unique=True))
    more = replace(more, indexes=indexes)
    story.statement(Action.MULTI_SCHEMA_CHANGE, "ALTER TABLE t ADD d int, ADD UNIQUE (u, d)", more)
    apply(story, settings)
    assert names(mariadb) == ["id", "a", "u", "d", "gone"]
    assert story.rows("t") == [(1, "x", 1, 7, first), (2, "x", 2, 7, None), (3, "z", 1, 7, None)]
    story.idle(story.now + (1000 << 18))
    empty = replace(more, id=12)
    story.statement(Action.TRUNCATE_TABLE, "TRUNCATE TABLE t", 11, empty)
    then = time_of(story.now)
    story.insert(empty, {"id": 2, "a": "new", "u": 2, "d": 1})
    apply(story, settings)
    assert story.rows("t") == [
        (1, "x", 1, 7, first),
        (2, "new", 2, 1, None),
        (3, "z", 1, 7, then),
    ]
    story.statement(Action.DROP_TABLE, "DROP TABLE t", 12)
    apply(story, settings)
    with pytest.raises(Exception, match="doesn't exist"):
        story.rows("t")


def test_a_row_that_leaves_the_selection_is_marked_beside_masks_and_other_names(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    story = story_of(mariadb, tmp_path)
    rule = RULE | {"rename": {"a": "name"}, "mask": {"a": "null"}, "add": {"source": "'eu'"}}
    where = {"tables": ["d.*"], "where": "u > 0"}
    settings = settings_of(story, rule, filter={"rows": [where], "mask": SECTION})
    row: Row = {"id": 1, "a": "x", "u": 1}
    story.insert(PEOPLE, row)
    apply(story, settings)
    row = story.update(PEOPLE, row, {"u": -1})
    left = time_of(story.now)
    apply(story, settings)
    assert story.rows("t", "id, name, u, source, gone") == [(1, None, 1, "eu", left)]
    row = story.update(PEOPLE, row, {"u": 2})
    apply(story, settings)
    assert story.rows("t", "id, name, u, source, gone") == [(1, None, 2, "eu", None)]


FLOATING = table(11, "t", "id double", primary="id", clustered=False)


@pytest.mark.parametrize(
    ("made", "rules", "why"),
    [
        (table(11, "t", "id int", unique=("id",)), [RULE], "it has no primary key"),
        (PEOPLE, [{"soft-delete": "A"}], "in column A: the table has a column of this name"),
        (PEOPLE, [RULE, {"soft-delete": "x"}], "1 .* and .* 2 .* in different columns"),
        (PEOPLE, [RULE | {"add": {"gone": "'x'"}}], "column gone: the table has a column of"),
        (PEOPLE, [RULE | {"rename": {"a": "gone"}}], "column gone: the table has a column of"),
        (FLOATING, [RULE], "its primary key has column id, a floating point number"),
        (
            table(11, "t", "id varchar(9) collate utf8mb4_unicode_ci", primary="id"),
            [RULE],
            "column id, of collation utf8mb4_unicode_ci, of which Sluice doesn't know",
        ),
        (
            table(11, "t", "id varchar(9)", primary="id(3)", clustered=False),
            [RULE],
            "its primary key holds a prefix",
        ),
    ],
)
def test_a_table_whose_deleted_rows_cannot_stay_is_refused_by_name(
    made: Table, rules: list[dict[str, Any]], why: str
) -> None:
    filters = parse_filter({"columns": [{"tables": ["d.t"], **rule} for rule in rules]})[0]
    with pytest.raises(ColumnRuleError, match=why):
        filters.narrowed(made)


def test_a_table_that_is_shaped_already_stays_as_it_is() -> None:
    filters = parse_filter({"columns": [{"tables": ["d.*"], **RULE, "keep": ["id", "u"]}]})[0]
    once = filters.narrowed(PEOPLE)
    assert [c.name for c in once.columns if c.public] == ["id", "u", "gone"]
    assert [c.name for c in once.writable_columns] == ["id", "u"]
    assert not any(index.unique for index in once.indexes)
    assert filters.narrowed(once) == once
    assert Table.from_json(once.to_json()) == once


def test_an_upstream_column_of_that_name_and_a_lost_key_stop_before_they_run(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    apply(story, settings)
    story.statement(Action.ADD_COLUMN, "ALTER TABLE ...", wider(PEOPLE, column(4, "Gone int")))
    with pytest.raises(SluiceError, match=r"has a column of this name.*Statement: ALTER TABLE"):
        apply(story, settings)
    assert names(mariadb) == ["id", "a", "u", "gone"]


def test_values_of_rows_that_are_gone_stop_a_type_that_they_do_not_fit(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    story.insert(PEOPLE, {"id": 1, "a": "long", "u": 1}, {"id": 2, "a": "x", "u": 2})
    story.delete(PEOPLE, {"id": 1, "a": "long", "u": 1})
    shorter = replace(
        PEOPLE, columns=(PEOPLE.columns[0], column(2, "a varchar(3)"), PEOPLE.columns[2])
    )
    story.statement(Action.MODIFY_COLUMN, "ALTER TABLE t MODIFY a varchar(3)", shorter)
    with pytest.raises(SluiceError, match=r"values of d\.t don't fit: .*gone upstream"):
        apply(story, settings)
    assert [row[1] for row in story.rows("t")] == ["long", "x"]


def test_a_unique_key_that_is_there_already_stops_before_a_row_is_written(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    apply(story, settings_of(story))
    story.insert(PEOPLE, {"id": 1, "a": "x", "u": 1})
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE d.t ADD COLUMN gone DATETIME(3)")
    with pytest.raises(SluiceError, match=r"d\.t on .* has the unique key u2, and"):
        apply(story, settings_of(story, RULE))
    assert story.rows("t") == []
    with mariadb.connect() as connection, connection.cursor() as cursor:
        # apart, as the hint has them: TiDB takes no two statements about one index
        cursor.execute("ALTER TABLE d.t DROP INDEX u2")
        cursor.execute("ALTER TABLE d.t ADD INDEX u2 (u)")
    apply(story, settings_of(story, RULE))
    assert story.rows("t") == [(1, "x", 1, None)]


def test_a_merged_table_keeps_no_deleted_rows(mariadb: MariaDBServer, tmp_path: Path) -> None:
    routes = Routes((Route("d", "t*", "d", "all", "[[route]] 1"),))
    story = story_of(mariadb, tmp_path)
    with pytest.raises(SluiceError, match=r"adds columns of d\.t, which is merged"):
        apply(story, settings_of(story, RULE, routes=routes))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"soft-delete": 1}, 'soft-delete = 1: "column" expected'),
        ({"soft-delete": ""}, "or soft-delete ="),
        ({"soft-delete": "x "}, "no server takes 'x '"),
    ],
)
def test_a_rule_that_cannot_be_understood_names_itself(rule: dict[str, Any], why: str) -> None:
    with pytest.raises(RuleError, match=rf"\[\[filter.columns\]\] 1.*{why}"):
        parse_filter({"columns": [{"tables": ["d.t"], **rule}]})


@pytest.mark.parametrize("kind", ["kafka", "file"])
def test_settings_of_kafka_and_files_refuse_soft_deletes(tmp_path: Path, kind: str) -> None:
    document = {
        "upstream": {"pd-urls": "-"},
        "relay": {"url": f"file://{tmp_path}/relay"},
        "downstream": {"type": kind},
        "file": {"dir": str(tmp_path)},
        "filter": {"columns": [{"tables": ["d.t"], **RULE}]},
    }
    with pytest.raises(SettingsError, match=r"soft-delete gone\): .*databases alone"):
        parse_settings(document)


def test_the_digest_of_rules_counts_soft_deletes_and_is_that_of_before_without() -> None:
    def digest(*rules: dict[str, Any]) -> str:
        raw = [{"tables": ["d.t"], **rule} for rule in rules]
        return rules_digest(parse_filter({"columns": raw})[0], Routes())

    assert digest({"leave-out": ["a"]}, {"rename": {"b": "x"}}) == "ebf93c35672ebfa3"
    assert len({digest(RULE), digest({"soft-delete": "x"}), digest({"add": {"gone": "1"}})}) == 3


def test_marked_rows_stay_marked_in_an_exchanged_partition(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    parts = partitioned(1, "`id`", (101, "p0", "5"), (102, "p1", "9"))
    made = story.create(table(10, "t", "id int", "v int", primary="id", partition=parts), "")
    beside = story.create(table(11, "tx", "id int", "v int", primary="id"), "")
    settings = settings_of(story, RULE)
    story.insert(made, {"id": 1, "v": 1}, {"id": 2, "v": 2}, {"id": 6, "v": 6})
    story.insert(beside, {"id": 3, "v": 3}, {"id": 4, "v": 4})
    story.delete(made, {"id": 1, "v": 1})
    story.delete(beside, {"id": 3, "v": 3})
    exchanged(story, made, 0, beside)
    apply(story, settings)
    shown = "id, v, gone IS NULL"
    assert story.rows("t", shown) == [(3, 3, 0), (4, 4, 1), (6, 6, 1)]
    assert story.rows("tx", shown) == [(1, 1, 0), (2, 2, 1)]

"""Every version of a row is a row, from commit to commit: a model in Python judges the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.errors import SluiceError
from sluice.etl.changes.rules import ColumnRuleError, Routes, rules_digest
from sluice.etl.settings import SettingsError, parse_settings
from sluice.etl.settings.rules import RuleError, parse_filter
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.ddl_actions import Action
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Index, Table
from tests.etl.apply.ruled_columns import apply, names, settings_of
from tests.etl.apply.soft_deleted import KEYS, Drawn, made_of, time_of
from tests.etl.apply.test_safe_mode import forget, leave_checkpoint
from tests.etl.apply.versions import RULE, Versions, run
from tests.etl.downstream.ddl.test_partition_changes import exchanged
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, SECTION, VARIABLE
from tests.etl.story import Row, Story, column, partitioned, table, wider
from tests.examples import examples
from tests.judge.attempt import Harm, Plan
from tests.judge.verdict import _attempt as attempted

PEOPLE = table(11, "t", "id int", "a varchar(9)", "u int", primary="id", unique=("u",))


@pytest.mark.quick_cases("any case-False-atomic")
@pytest.mark.parametrize("mode", ["atomic", pytest.param("parallel", marks=pytest.mark.slow)])
@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("kind", KEYS)
def test_random_histories_leave_a_row_for_each_version_of_each_key(
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
        versions = Versions(Drawn(story, kind, made, data))
        settings = settings_of(story, RULE, mode=mode)
        for _ in range(data.draw(st.integers(1, 8))):
            versions.transaction()
            if data.draw(st.integers(0, 3)) == 0:
                apply(story, settings)
        apply(story, settings)
        assert story.rows("t") == versions.wanted()

    check()


def story_of(server: MariaDBServer, folder: Path, made: Table = PEOPLE) -> Story:
    story = Story(server, folder)
    story.create(made, "CREATE TABLE t (...)")
    return story


def test_commits_of_one_batch_and_one_millisecond_are_versions_of_their_own(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    row: Row = {"id": 1, "a": "x", "u": 5}
    story.insert(PEOPLE, row, {"id": 2, "a": None, "u": 6})
    first = story.now
    row = story.update(PEOPLE, row, {"a": "y"})
    second = story.now
    story.delete(PEOPLE, row)
    third = story.now
    story.insert(PEOPLE, {"id": 3, "a": "u", "u": 5})  # the value of the row that is gone
    assert first >> 18 == story.now >> 18
    apply(story, settings_of(story, RULE))
    assert names(mariadb) == ["id", "a", "u", "since", "until", "made_by"]
    when = time_of(first)
    assert story.rows("t") == [
        (1, "x", 5, when, when, first),
        (1, "y", 5, when, time_of(third), second),
        (2, None, 6, when, None, first),
        (3, "u", 5, when, None, story.now),
    ]


def test_what_a_transaction_leaves_as_it_was_is_no_version(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    made = table(11, "t", "id int", "v int", "seen int", primary="id", clustered=False)
    story = story_of(mariadb, tmp_path, made)
    one: Row = {"id": 1, "v": 1, "seen": 1, "_tidb_rowid": 1}
    two: Row = {"id": 2, "v": 2, "seen": 1, "_tidb_rowid": 2}
    story.insert(made, one, two)
    first = story.now
    again, brief = one | {"_tidb_rowid": 3}, one | {"id": 9, "_tidb_rowid": 4}
    story.changes(
        (made, DELETE, encode_delete(made, one)),
        (made, INSERT, encode_insert(made, again)),
        (made, UPDATE, encode_update(made, two, two | {"seen": 2})),
        (made, INSERT, encode_insert(made, brief)),
        (made, DELETE, encode_delete(made, brief)),
    )
    apply(story, settings_of(story, RULE | {"leave-out": ["seen"]}))
    assert story.rows("t", "id, v, until, made_by") == [(1, 1, None, first), (2, 2, None, first)]


def test_rows_that_exchange_their_keys_keep_both_versions_in_any_order(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    made = table(11, "t", "id int", "v int", primary="id", clustered=False)
    story = story_of(mariadb, tmp_path, made)
    one, two = ({"id": n, "v": n, "_tidb_rowid": n} for n in (1, 2))
    story.insert(made, one, two)
    first = story.now
    story.changes(  # as TiKV has it: by row id
        (made, UPDATE, encode_update(made, one, one | {"id": 2})),
        (made, UPDATE, encode_update(made, two, two | {"id": 1})),
    )
    apply(story, settings_of(story, RULE))
    assert story.rows("t", "id, v, until IS NULL, made_by") == [
        (1, 1, 0, first),
        (1, 2, 1, story.now),
        (2, 1, 1, story.now),
        (2, 2, 0, first),
    ]


@pytest.mark.quick_cases("0")
@pytest.mark.parametrize(
    "damage",
    ["", "DELETE FROM d.t WHERE until IS NULL", "UPDATE d.t SET until = NULL"],
    ids=["0", "1", "2"],
)
def test_changes_that_are_written_twice_leave_the_same_versions(
    mariadb: MariaDBServer, tmp_path: Path, damage: str
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    old: Row = {"id": 8, "a": "x", "u": 8}
    story.insert(PEOPLE, old, {"id": 9, "a": "x", "u": 9})
    apply(story, settings)
    start = story.now
    for number in range(1, 4):
        story.insert(PEOPLE, {"id": number, "a": "x", "u": number})
        old = story.update(PEOPLE, old, {"a": str(number)})
    story.idle(story.now + (3000 << 18))
    story.delete(PEOPLE, {"id": 1, "a": "x", "u": 1}, {"id": 9, "a": "x", "u": 9})
    story.insert(PEOPLE, {"id": 9, "a": "y", "u": 1})
    if not damage:
        more = wider(PEOPLE, column(4, "d int"))
        story.statement(Action.ADD_COLUMN, "ALTER TABLE t ADD d int", more)
    apply(story, settings)
    left = story.rows("t", "id, a, u, since, until, made_by")
    assert len(left) == 9
    with mariadb.connect() as connection:  # as a Drainer leaves it that was killed there
        leave_checkpoint(connection, start, sluice={"safe-until": story.now})
        connection.commit()
    if damage:
        run(mariadb, f"{damage} {'AND' if 'WHERE' in damage else 'WHERE'} made_by > {start}")
    forget(story.url)
    apply(story, settings)
    assert story.rows("t", "id, a, u, since, until, made_by") == left


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("DELETE FROM d.t WHERE id = 1", "0 of 1 open version to end were there"),
        (
            "INSERT INTO d.t VALUES (2, 'x', 2, '2000-01-01', NULL, 1)",
            "1 of 0 open versions to end was there",
        ),
    ],
)
def test_an_open_version_that_is_missing_or_too_many_stops_before_a_row_is_written(
    mariadb: MariaDBServer, tmp_path: Path, damage: str, why: str
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    row: Row = {"id": 1, "a": "x", "u": 1}
    story.insert(PEOPLE, row)
    apply(story, settings)
    run(mariadb, damage)
    before = story.rows("t")
    if "DELETE" in damage:
        story.update(PEOPLE, row, {"a": "y"})
    else:
        story.insert(PEOPLE, {"id": 2, "a": "z", "u": 2})
    with pytest.raises(SluiceError, match=why):
        apply(story, settings)
    assert story.rows("t") == before


def test_statements_reach_past_versions_and_truncate_ends_all(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    row: Row = {"id": 1, "a": "x", "u": 1}
    story.insert(PEOPLE, row, {"id": 2, "a": "x", "u": 2})
    row = story.update(PEOPLE, row, {"a": "y"})
    second = time_of(story.now)
    more = wider(PEOPLE, column(4, "d int not null", origin_default="7", default="7"))
    indexes = (*more.indexes, Index(9, "ud", (("u", 2, -1), ("d", 3, -1)), unique=True))
    more = replace(more, indexes=indexes)
    story.statement(Action.MULTI_SCHEMA_CHANGE, "ALTER TABLE t ADD d int, ADD UNIQUE (u, d)", more)
    row["d"] = 7
    story.update(more, row, {"d": 8})
    apply(story, settings)
    assert names(mariadb) == ["id", "a", "u", "d", "since", "until", "made_by"]
    shown = "id, a, u, d, until"
    assert story.rows("t", shown) == [
        (1, "x", 1, 7, second),
        (1, "y", 1, 7, time_of(story.now)),
        (1, "y", 1, 8, None),
        (2, "x", 2, 7, None),
    ]
    without = replace(
        more,
        columns=tuple(replace(c, offset=n) for n, c in enumerate(more.columns) if c.name != "a"),
    )
    without = replace(
        without,
        columns=tuple(replace(c, offset=n) for n, c in enumerate(without.columns)),
        indexes=tuple(
            replace(
                i, columns=tuple((n, ["id", "u", "d"].index(n), size) for n, _, size in i.columns)
            )
            for i in more.indexes
        ),
    )
    story.statement(Action.DROP_COLUMN, "ALTER TABLE t DROP a", without)
    story.idle(story.now + (1000 << 18))
    empty = replace(without, id=12)
    story.statement(Action.TRUNCATE_TABLE, "TRUNCATE TABLE t", 11, empty)
    then = time_of(story.now)
    story.insert(empty, {"id": 2, "u": 2, "d": 1})
    apply(story, settings)
    assert story.rows("t", "id, u, d, until") == [
        (1, 1, 7, second),
        (1, 1, 7, second),
        (1, 1, 8, then),
        (2, 2, 1, None),
        (2, 2, 7, then),
    ]
    story.statement(Action.DROP_TABLE, "DROP TABLE t", 12)
    apply(story, settings)
    with pytest.raises(Exception, match="doesn't exist"):
        story.rows("t")


def test_a_row_that_leaves_the_selection_ends_beside_masks_and_other_names(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    story = story_of(mariadb, tmp_path)
    rule: dict[str, Any] = {"rename": {"a": "name", "id": "no"}, "mask": {"a": "null"}}
    rule = RULE | {"rename": {"a": "name"}, "mask": {"a": "null"}, "add": {"source": "'eu'"}}
    where = {"tables": ["d.*"], "where": "u > 0"}
    settings = settings_of(story, rule, filter={"rows": [where], "mask": SECTION})
    row: Row = {"id": 1, "a": "x", "u": 1}
    story.insert(PEOPLE, row)
    first = story.now
    row = story.update(PEOPLE, row, {"a": "masked, so this changes nothing"[:9]})
    row = story.update(PEOPLE, row, {"u": -1})
    left = time_of(story.now)
    row = story.update(PEOPLE, row, {"u": 2})
    apply(story, settings)
    assert story.rows("t", "id, name, u, source, until, made_by") == [
        (1, None, 1, "eu", left, first),
        (1, None, 2, "eu", None, story.now),
    ]


@pytest.mark.parametrize(
    ("made", "rules", "why"),
    [
        (table(11, "t", "id int", unique=("id",)), [RULE], "it has no primary key"),
        (PEOPLE, [{"history": {"from": "A"}}], "the table has a column named A"),
        (PEOPLE, [RULE, {"history": {}}], "1 .* and .* 2 .* by different columns"),
        (PEOPLE, [RULE | {"add": {"until": "'x'"}}], "the table has a column named until"),
        (PEOPLE, [RULE, {"soft-delete": "gone"}], "1 .* keeps .* 2 .* marks its deleted rows"),
        (
            table(11, "t", "id double", primary="id", clustered=False),
            [RULE],
            "column id, a floating point number",
        ),
    ],
)
def test_a_table_whose_versions_cannot_be_kept_is_refused_by_name(
    made: Table, rules: list[dict[str, Any]], why: str
) -> None:
    filters = parse_filter({"columns": [{"tables": ["d.t"], **rule} for rule in rules]})[0]
    with pytest.raises(ColumnRuleError, match=why):
        filters.narrowed(made)


def test_a_table_that_is_shaped_already_stays_as_it_is() -> None:
    filters = parse_filter({"columns": [{"tables": ["d.*"], **RULE, "keep": ["id", "u"]}]})[0]
    once = filters.narrowed(PEOPLE)
    assert [c.name for c in once.columns if c.public] == ["id", "u"]
    assert once.history == ("since", "until", "made_by")
    assert filters.narrowed(once) == once
    assert Table.from_json(once.to_json()) == once


def test_an_exchanged_partition_stops_by_name_before_it_runs(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    parts = partitioned(1, "`id`", (101, "p0", "5"), (102, "p1", "9"))
    made = story.create(table(10, "t", "id int", "v int", primary="id", partition=parts), "")
    beside = story.create(table(11, "tx", "id int", "v int", primary="id"), "")
    story.insert(made, {"id": 1, "v": 1})
    exchanged(story, made, 0, beside)
    with pytest.raises(SluiceError, match=r"exchanges rows of d\.t.*history since.*keeps versions"):
        apply(story, settings_of(story, RULE))
    assert [row[0] for row in story.rows("t")] == [1]


def test_an_upstream_column_of_such_a_name_stops_before_it_runs(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    apply(story, settings_of(story, RULE))
    story.statement(Action.ADD_COLUMN, "ALTER TABLE ...", wider(PEOPLE, column(4, "Until int")))
    with pytest.raises(SluiceError, match=r"has a column named until.*Statement: ALTER TABLE"):
        apply(story, settings_of(story, RULE))
    assert names(mariadb) == ["id", "a", "u", "since", "until", "made_by"]


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"history": 1}, r"history = 1: \{ from"),
        ({"history": {"since": "x"}}, "unknown key since; known are from, to, commit-ts"),
        ({"history": {"from": "x", "to": "X"}}, "is there twice"),
        ({"history": {"from": "x "}}, "no server takes 'x '"),
    ],
)
def test_a_rule_that_cannot_be_understood_names_itself(rule: dict[str, Any], why: str) -> None:
    with pytest.raises(RuleError, match=rf"\[\[filter.columns\]\] 1.*{why}"):
        parse_filter({"columns": [{"tables": ["d.t"], **rule}]})


@pytest.mark.parametrize("kind", ["kafka", "file"])
def test_settings_of_kafka_and_files_refuse_history_tables(tmp_path: Path, kind: str) -> None:
    document = {
        "upstream": {"pd-urls": "-"},
        "relay": {"url": f"file://{tmp_path}/relay"},
        "downstream": {"type": kind},
        "file": {"dir": str(tmp_path)},
        "filter": {"columns": [{"tables": ["d.t"], **RULE}]},
    }
    with pytest.raises(SettingsError, match=r"history since, until, made_by\): .*databases alone"):
        parse_settings(document)


def test_the_digest_of_rules_counts_histories_and_is_that_of_before_without() -> None:
    def digest(*rules: dict[str, Any]) -> str:
        raw = [{"tables": ["d.t"], **rule} for rule in rules]
        return rules_digest(parse_filter({"columns": raw})[0], Routes())

    assert digest({"leave-out": ["a"]}, {"rename": {"b": "x"}}) == "ebf93c35672ebfa3"
    assert len({digest(RULE), digest({"history": {}}), digest({"soft-delete": "since"})}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["atomic", pytest.param("parallel", marks=pytest.mark.beyond_ci)])
def test_processes_that_are_killed_anywhere_leave_each_version_once(
    mariadb: MariaDBServer, tmp_path_factory: pytest.TempPathFactory, mode: str
) -> None:
    @tried(
        deadline=None,
        max_examples=5,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        mariadb.empty()
        story = Story(mariadb, tmp_path_factory.mktemp("story"))
        made = made_of("pair", clustered=data.draw(st.booleans()))
        story.create(made, "CREATE TABLE t (...)")
        versions = Versions(Drawn(story, "pair", made, data))
        for _ in range(3):
            for _ in range(data.draw(st.integers(1, 6))):
                versions.transaction()
            finish(story, mode, data)
            assert story.rows("t") == versions.wanted()

    check()


def finish(story: Story, mode: str, data: st.DataObject) -> None:
    """Applies in processes that are killed, lose a connection or stand still, until one is done."""
    rules = {"columns": [{"tables": ["d.t"], **RULE}]}
    rows = data.draw(st.sampled_from([1, 3, 1000]))
    for _ in range(data.draw(st.integers(0, 3))):
        how = data.draw(st.sampled_from(["killed", "killed", "cut", "stopped"]))
        harm = Harm(data.draw(st.integers(1, 40)), how)
        plan = Plan(story.url, story.server.port, story.now, mode, rows, (), harm, rules)
        assert attempted(plan) in (None, "")
    plan = Plan(story.url, story.server.port, story.now, mode, rows, (), Harm(), rules)
    assert attempted(plan) == ""

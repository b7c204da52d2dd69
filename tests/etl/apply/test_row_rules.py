"""Rows by expression: the downstream has the rows that a real server finds by the rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.errors import SluiceError
from sluice.etl.apply import run_apply
from sluice.etl.changes.formats.sql_text import literal
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.etl.settings.rules import RuleError, parse_filter
from sluice.etl.settings.sections import Apply
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Row, Story, table, wider
from tests.examples import examples

COLUMNS = ("region varchar(9)", "amount decimal(10,2)", "state enum('new','paid','done')")
CLUSTERED = table(11, "orders", "id int", *COLUMNS, primary="id")
TEXT_KEY = table(12, "orders", "id varchar(9)", *COLUMNS, primary="id")
HEAP = table(13, "orders", "id int not null", *COLUMNS, unique=("id",))
KEYLESS = table(14, "orders", "id int not null", *COLUMNS)
RULES = [
    "region = 'eu'",
    "region <> 'eu' OR amount >= 10",
    "NOT (region IN ('eu', 'us') AND state <> 'done')",
    "amount BETWEEN 1 AND 99.5 OR region IS NULL",
    "region LIKE 'e%' AND state <=> NULL",
]
VALUES = st.fixed_dictionaries(
    {
        "region": st.sampled_from([None, "eu", "EU", "us", "eu "]),
        "amount": st.sampled_from([None, "0.50", "10.00", "99.50"]),
        "state": st.sampled_from([None, "new", "paid", "done"]),
    }
)


def rules(*where: str, **more: Any) -> list[dict[str, Any]]:
    return [{"tables": ["d.orders*"], "where": each, **more} for each in where]


def settings_of(story: Story, some: Sequence[dict[str, Any]], mode: str = "atomic") -> Settings:
    filters = parse_filter({"rows": list(some)})[0]
    return Settings(
        Upstream("unused"),
        Relay(story.url),
        story.server.downstream,
        apply=Apply(mode=mode),
        filters=filters,
    )


def apply(story: Story, settings: Settings) -> None:
    last = settings.open_relay().last()
    assert last is not None
    run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))


def create(story: Story, made: Table) -> Table:
    kind = "varchar(9)" if made is TEXT_KEY else "int"
    key = {TEXT_KEY: ", primary key (id)", CLUSTERED: ", primary key (id)", HEAP: ", unique (id)"}
    columns = ", ".join((f"id {kind} not null", *COLUMNS))
    return story.create(made, f"CREATE TABLE `orders` ({columns}{key.get(made, '')})")


def found_by_server(server: MariaDBServer, made: Table, rows: list[Row], where: str) -> list[Any]:
    """The rows for which the condition is true, as a server sees them."""
    names = [column.name for column in made.columns]
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS model")
        cursor.execute("DROP TABLE IF EXISTS model.t")
        kind = "varchar(9)" if made is TEXT_KEY else "int"
        cursor.execute(
            f"CREATE TABLE model.t (id {kind}, {', '.join(COLUMNS)})"
            " CHARSET utf8mb4 COLLATE utf8mb4_bin"
        )
        for row in rows:
            values = ", ".join(literal(row[name]) for name in names)
            cursor.execute(f"INSERT INTO model.t VALUES ({values})")
        cursor.execute(f"SELECT * FROM model.t WHERE {where}")
        return sorted(cursor.fetchall(), key=repr)


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[int, int, Row]]]:
    """Transactions of (kind, number of the row, its values)."""
    there: set[int] = set()
    found = []
    for _ in range(draw(st.integers(1, 5))):
        transaction = []
        for _ in range(draw(st.integers(1, 6))):
            number = draw(st.integers(1, 5))
            kind = (
                INSERT if number not in there else draw(st.sampled_from([UPDATE, UPDATE, DELETE]))
            )
            (there.discard if kind == DELETE else there.add)(number)
            transaction.append((kind, number, draw(VALUES)))
        found.append(transaction)
    return found


def play(story: Story, made: Table, history: list[list[tuple[int, int, Row]]]) -> list[Row]:
    """Tell the story; the rows that are there in the end."""
    there: dict[int, Row] = {}
    for transaction in history:
        encoded = []
        for kind, number, values in transaction:
            key = f"k{number}" if made is TEXT_KEY else number
            new = {"id": key, "_tidb_rowid": number, **values}
            if kind == INSERT:
                row = encode_insert(made, new)
            elif kind == UPDATE:
                row = encode_update(made, there[number], new)
            else:
                row = encode_delete(made, there.pop(number))
            if kind != DELETE:
                there[number] = new
            encoded.append((made, kind, row))
        story.changes(*encoded)
    return list(there.values())


@pytest.mark.quick_cases(every=4)
@pytest.mark.parametrize("made", [CLUSTERED, TEXT_KEY, HEAP, KEYLESS], ids=lambda t: str(t.id))
@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
def test_the_downstream_has_the_rows_that_the_rule_selects(
    mariadb: MariaDBServer, tmp_path_factory: pytest.TempPathFactory, made: Table, mode: str
) -> None:
    @tried(
        deadline=None,
        max_examples=examples(12),
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(history=histories(), where=st.sampled_from(RULES), at_once=st.booleans())
    def check(history: list[list[tuple[int, int, Row]]], where: str, at_once: bool) -> None:
        mariadb.empty()
        story = Story(mariadb, tmp_path_factory.mktemp("story"))
        create(story, made)
        settings = settings_of(story, rules(where), mode)
        if not at_once:
            apply(story, settings)
        rows = play(story, made, history)
        apply(story, settings)
        assert story.rows("orders") == found_by_server(mariadb, made, rows, where)

    check()


def test_an_update_across_the_border_is_an_insert_or_a_delete(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    create(story, CLUSTERED)
    row: Row = {"id": 1, "region": "us", "amount": "1.00", "state": "new"}
    story.insert(CLUSTERED, row)
    settings = settings_of(story, rules("region = 'eu'"))
    apply(story, settings)
    assert story.rows("orders") == []
    row = story.update(CLUSTERED, row, {"region": "eu"})
    apply(story, settings)
    assert story.rows("orders", "id, region") == [(1, "eu")]
    story.update(CLUSTERED, row, {"region": None})
    apply(story, settings)
    assert story.rows("orders") == []


def test_several_rules_are_about_a_table_together(mariadb: MariaDBServer, tmp_path: Path) -> None:
    story = Story(mariadb, tmp_path)
    create(story, CLUSTERED)
    for number, (region, state) in enumerate([("eu", "new"), ("eu", "done"), ("us", "new")]):
        story.insert(CLUSTERED, {"id": number, "region": region, "state": state, "amount": None})
    apply(story, settings_of(story, rules("region = 'eu'", "state <> 'done'")))
    assert story.rows("orders", "id") == [(0,)]


def test_a_rule_about_changes_sees_old_and_new_values(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    create(story, CLUSTERED)
    row: Row = {"id": 1, "region": "eu", "amount": "1.00", "state": "new"}
    story.insert(CLUSTERED, row)
    row = story.update(CLUSTERED, row, {"state": "done"})
    row = story.update(CLUSTERED, row, {"amount": "2.00"})  # left out: it was done before
    some = rules("old.state <> 'done'", operations=["update"])
    settings = settings_of(story, some)
    apply(story, settings)
    assert story.rows("orders", "id, amount + 0, state") == [(1, 1, "done")]
    assert settings.filters.leaves_changes_out("d", "orders")
    story.delete(CLUSTERED, row)
    apply(story, settings)
    assert story.rows("orders") == [], "the rule isn't about deletes"


@pytest.mark.parametrize(
    ("behind", "why"),
    [
        (table(11, "orders", "id int", *COLUMNS[1:], primary="id"), "no column region"),
        (
            table(11, "orders", "id int", "area varchar(9)", *COLUMNS[1:], primary="id"),
            "no column region",
        ),
        (
            table(11, "orders", "id int", "region varchar(2)", *COLUMNS[1:], primary="id"),
            "it becomes shorter",
        ),
        (
            table(
                11,
                "orders",
                "id int",
                "region varchar(9) collate utf8mb4_general_ci",
                *COLUMNS[1:],
                primary="id",
            ),
            "another type or collation",
        ),
    ],
)
def test_ddl_that_changes_a_column_of_a_condition_stops_by_name(
    mariadb: MariaDBServer, tmp_path: Path, behind: Table, why: str
) -> None:
    story = Story(mariadb, tmp_path)
    create(story, CLUSTERED)
    settings = settings_of(story, rules("region = 'eu'"))
    apply(story, settings)
    story.statement(5, "ALTER TABLE `orders` whatever", behind)
    with pytest.raises(SluiceError, match=why) as stopped:
        apply(story, settings)
    assert "[[filter.rows]] 1" in str(stopped.value)
    assert "sluice ddl" in stopped.value.hint


def test_a_column_may_become_wider_and_others_may_come(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    create(story, CLUSTERED)
    wide = table(11, "orders", "id int", "region varchar(20)", *COLUMNS[1:], primary="id")
    story.statement(12, "ALTER TABLE `orders` MODIFY region varchar(20)", wide)
    more = wider(wide, table(11, "o", *["x int"] * 4, "note varchar(9)").columns[4])
    story.statement(5, "ALTER TABLE `orders` ADD COLUMN note varchar(9)", more)
    for number, region in enumerate(["eu", "us"]):
        story.insert(
            more, {"id": number, "region": region, "amount": None, "state": None, "note": "n"}
        )
    apply(story, settings_of(story, rules("region = 'eu'")))
    assert story.rows("orders", "id, note") == [(0, "n")]


def test_a_rename_between_tables_of_different_rules_stops_by_name(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    create(story, CLUSTERED)
    settings = settings_of(story, rules("region = 'eu'"))
    apply(story, settings)
    renamed = table(11, "old", "id int", *COLUMNS, primary="id")
    story.statement(14, "RENAME TABLE `orders` TO `old`", renamed)
    with pytest.raises(SluiceError, match=r"selects other rows of d.orders than of d.old"):
        apply(story, settings)


def test_a_table_that_lacks_a_column_of_its_rule_stops_at_its_creation(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    settings = settings_of(story, rules("country = 'de'"))
    create(story, CLUSTERED)
    with pytest.raises(SluiceError, match=r"\[\[filter.rows\]\] 1 .* has no column country"):
        apply(story, settings)


def test_a_row_rule_and_an_event_filter_of_one_table_are_refused(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    create(story, CLUSTERED)
    filters = parse_filter(
        {
            "rows": rules("region = 'eu'"),
            "binlog-filter-rule": {"keep": {"ignore-event": ["delete"]}},
            "table-migrate-rule": [
                {"source": {"schema": "d", "table": "orders"}, "binlog-filter-rule": ["keep"]}
            ],
        }
    )[0]
    settings = Settings(
        Upstream("unused"), Relay(story.url), story.server.downstream, filters=filters
    )
    with pytest.raises(SluiceError, match="an event filter"):
        apply(story, settings)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"where": "a = 1"}, r"1: tables = .* is missing"),
        ({"tables": ["d.t"]}, "1: where = None"),
        ({"tables": ["d.t"], "where": "a ="}, "1 where: a column or a constant expected"),
        ({"tables": ["d.t"], "where": "a = 1", "opera": 1}, "1: unknown key opera"),
        (
            {"tables": ["d.t"], "where": "a = 1", "operations": ["truncate"]},
            r"1 operations\[1\] = 'truncate': there are insert, update, delete",
        ),
    ],
)
def test_a_mistake_names_the_rule_and_the_key(rule: dict[str, Any], why: str) -> None:
    with pytest.raises(RuleError, match=r"\[\[filter.rows\]\] " + why):
        parse_filter({"rows": [rule]})

"""Masked columns: the downstream has what masks make of every value, and never a clear one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.errors import SluiceError
from sluice.etl.changes.rules import Filter, Route, Routes, rules_digest
from sluice.etl.settings import Settings, SettingsError, parse_settings
from sluice.etl.settings.rules import RuleError, parse_filter
from sluice.relay import DELETE, UPDATE
from sluice.tidb.ddl_actions import Action
from sluice.tidb.rows import encode_delete, encode_update
from sluice.tidb.schema import Index, Table
from tests.etl.apply.drawn_table import KINDS, DrawnTable
from tests.etl.apply.ruled_columns import apply, names, selected, settings_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, SECTION, VARIABLE, hashed, masked
from tests.etl.story import Row, Story, column, table, wider
from tests.examples import examples

PEOPLE = table(
    11,
    "t",
    "id int",
    "name varchar(64)",
    "mail varchar(40)",
    "phone varchar(20) not null",
    "card varchar(30)",
    "born date",
    primary="id",
)
MASKS = {
    "NAME": "hash",
    "mail": "email",
    "phone": "digits",
    "card": {"partial": 4},
    "born": {"constant": "1970-01-01"},
}
DRAWN = {
    "a": st.sampled_from(["null", {"partial": 0}, {"partial": 1}, "digits", {"constant": "c"}]),
    "b": st.sampled_from(["null", {"constant": 7}]),
    "c": st.just("null"),
    "d": st.sampled_from(["null", {"constant": "y"}]),
    "e": st.sampled_from(["null", "digits", {"constant": -5}]),
    **{f"x{n}": st.sampled_from(["null", {"constant": 7}]) for n in range(3, 12)},
}


@pytest.fixture(scope="module", autouse=True)
def key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, KEY)
        yield


def masking(story: Story, masks: dict[str, Any], **more: Any) -> Settings:
    section = more.pop("section", SECTION)
    return settings_of(story, {"mask": masks}, filter={"mask": section}, **more)


def person(number: int, name: str | None, **more: Any) -> Row:
    return {
        "id": number,
        "name": name,
        "mail": f"{name}@example.org",
        "phone": f"+49 30 {number:05d}",
        "card": "4111-1111-1111-1234",
        "born": "2001-02-03",
        **more,
    }


def as_masked(row: Row) -> tuple[Any, ...]:
    widths = {"name": 64, "mail": 40}
    by_name = {name.lower(): mask for name, mask in MASKS.items()}
    return tuple(
        masked(row[c.name], by_name[c.name], widths.get(c.name, 64))
        if c.name in by_name
        else row[c.name]
        for c in PEOPLE.columns
    )


def rows(story: Story) -> list[tuple[Any, ...]]:
    return sorted((*row[:5], row[5] and str(row[5])) for row in story.rows("t"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
def test_random_histories_leave_masked_values(
    mariadb: MariaDBServer, tmp_path_factory: pytest.TempPathFactory, kind: str, mode: str
) -> None:
    @tried(
        deadline=None,
        max_examples=examples(8),
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        mariadb.empty()
        story = Story(mariadb, tmp_path_factory.mktemp("story"))
        some = data.draw(st.lists(st.sampled_from(list(DRAWN)), min_size=1, unique=True))
        masks = {name: data.draw(DRAWN[name]) for name in some}
        upstream = DrawnTable(story, kind, data)
        settings = masking(story, masks, mode=mode)
        for _ in range(data.draw(st.integers(1, 6))):
            upstream.step()
            if data.draw(st.integers(0, 3)) == 0:
                apply(story, settings)
        apply(story, settings)
        model: Any = SimpleNamespace(
            table=upstream.table,
            rows={
                number: {
                    name: masked(value, masks[name]) if name in masks else value
                    for name, value in row.items()
                }
                for number, row in upstream.rows.items()
            },
        )
        columns = [c.name for c in upstream.table.columns]
        assert names(mariadb) == columns
        assert story.rows("t") == selected(mariadb, model, columns)

    check()


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_inserts_updates_and_deletes_find_masked_rows(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(PEOPLE, "CREATE TABLE t (...)")
    settings = masking(story, MASKS, mode=mode)
    people = [person(n, f"name {n}") for n in range(60)]
    people[7] |= {"name": None, "mail": None, "phone": "", "card": "12", "born": None}
    people[8] |= {"mail": "no address", "card": "", "name": ""}
    people[9] |= {"mail": "a@a.domain.too.long.for.forty.signs.example.org"}
    story.insert(PEOPLE, *people)
    apply(story, settings)
    assert rows(story) == sorted(map(as_masked, people))
    people[3] = story.update(PEOPLE, people[3], {"name": "other", "phone": "0"})
    people[4] = story.update(PEOPLE, people[4], {"born": "1999-09-09"})
    story.delete(PEOPLE, people.pop(11))
    apply(story, settings)
    assert rows(story) == sorted(map(as_masked, people))
    assert as_masked(people[0])[1] == hashed("name 0")


def test_a_column_that_is_added_has_its_masked_default_in_old_rows_too(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    old = story.create(table(11, "t", "id int", "a int", primary="id"), "CREATE TABLE t (...)")
    story.insert(old, {"id": 1, "a": 1}, {"id": 2, "a": 2})
    masks = {"nick": "hash", "city": {"constant": "town"}, "none": "hash"}
    settings = masking(story, masks)
    apply(story, settings)
    new = wider(
        old,
        column(3, "nick varchar(32) not null", default="boss", origin_default="boss"),
        column(4, "city varchar(9) not null"),
        column(5, "none varchar(16) not null"),
    )
    story.statement(Action.ADD_COLUMNS, "ALTER TABLE t ADD ... DEFAULT 'boss'", new)
    apply(story, settings)
    nick = hashed("boss", 32)
    assert story.rows("t") == [(1, 1, nick, "town", ""), (2, 2, nick, "town", "")]
    clear: Row = {"id": 1, "a": 1, "nick": "boss", "city": "", "none": ""}
    story.update(new, clear, {"a": 9})
    story.delete(new, clear | {"id": 2, "a": 2})
    apply(story, settings)
    assert story.rows("t") == [(1, 9, nick, "town", "")]


def test_names_are_hashed_alike_in_all_tables_so_that_joins_hold(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    tables = [table(n, f"t{n}", "id int", "who varchar(64)", primary="id") for n in (11, 12)]
    for number, each in enumerate(tables):
        story.create(each, "CREATE TABLE ...")
        story.insert(each, {"id": number, "who": "a name"}, {"id": 9, "who": f"only {number}"})
    apply(story, masking(story, {"who": "hash"}))
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT t11.id, t12.id FROM d.t11 JOIN d.t12 USING (who)")
        assert list(cursor.fetchall()) == [(0, 1)]


def test_an_error_of_the_downstream_shows_no_clear_value(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(PEOPLE, "CREATE TABLE t (...)")
    settings = masking(story, MASKS)
    apply(story, settings)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO d.t (id, phone) VALUES (1, '')")
        connection.commit()
    story.insert(PEOPLE, person(1, "secret"))
    with pytest.raises(SluiceError) as caught:
        apply(story, settings)
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def changed(of: Table, name: str, spec: str, **more: Any) -> Table:
    columns = tuple(
        replace(column(c.id, spec), offset=c.offset, **more) if c.name == name else c
        for c in of.columns
    )
    return replace(of, columns=columns)


WIDE = table(11, "t", "id int", "a varchar(40)", "b varchar(40)", "n int", primary="id")


@pytest.mark.parametrize(
    ("masks", "after", "why"),
    [
        ({"a": "hash"}, changed(WIDE, "a", "z varchar(40)"), "one of the two isn't masked"),
        ({"a": "hash", "z": "digits"}, changed(WIDE, "a", "z varchar(40)"), "isn't masked, or"),
        ({"z": "hash"}, changed(WIDE, "a", "z varchar(40)"), "one of the two isn't masked"),
        ({"a": "hash"}, changed(WIDE, "a", "a varchar(64)"), "had room for 40 hexadecimal"),
        ({"a": "email"}, changed(WIDE, "a", "a varchar(50)"), "had room for 40 hexadecimal"),
        ({"a": "digits"}, changed(WIDE, "a", "a varchar(20)"), "it becomes shorter"),
        ({"a": {"partial": 1}}, changed(WIDE, "a", "a varbinary(40)"), "it holds no text"),
        ({"n": {"constant": 300}}, changed(WIDE, "n", "n tinyint"), "numbers from -128 to 127"),
        ({"n": "digits"}, changed(WIDE, "n", "n bigint"), "held numbers from -2147483648 to"),
        ({"a": "null"}, changed(WIDE, "a", "a varchar(40) not null"), "it is NOT NULL"),
        (
            {"a": {"partial": 2}},
            replace(WIDE, indexes=(Index(5, "ua", (("a", 1, -1),), unique=True),)),
            "masks column a of d.t, which the key ua needs",
        ),
    ],
)
def test_a_ddl_behind_which_values_would_be_masked_otherwise_stops_before_it_runs(
    mariadb: MariaDBServer, tmp_path: Path, masks: dict[str, Any], after: Table, why: str
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(WIDE, "CREATE TABLE t (...)")
    story.insert(WIDE, {"id": 1, "a": "x 1", "b": "y", "n": 1})
    settings = masking(story, masks)
    apply(story, settings)
    before = story.rows("t")
    story.statement(Action.MODIFY_COLUMN, "ALTER TABLE t ...", after)
    with pytest.raises(SluiceError, match=rf"\[\[filter.columns\]\].*{why}.*ALTER TABLE t"):
        apply(story, settings)
    assert story.rows("t") == before and names(mariadb) == ["id", "a", "b", "n"]


@pytest.mark.parametrize(
    ("masks", "after"),
    [
        ({"a": "hash"}, changed(WIDE, "b", "z varchar(40)")),
        ({"a": "digits"}, changed(WIDE, "a", "a varchar(50)")),
        ({"a": {"constant": "x"}}, changed(WIDE, "a", "a varchar(5)")),
        ({"n": "null"}, changed(WIDE, "n", "n varchar(9)")),
        ({"n": {"constant": 5}}, changed(WIDE, "n", "n bigint")),
        ({"n": "digits"}, changed(WIDE, "n", "n int not null")),
    ],
)
def test_other_ddl_runs_and_values_go_on_being_masked(
    mariadb: MariaDBServer, tmp_path: Path, masks: dict[str, Any], after: Table
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(WIDE, "CREATE TABLE t (...)")
    row: Row = {"id": 1, "a": "x 1", "b": "y", "n": 1}
    story.insert(WIDE, row)
    settings = masking(story, masks)
    apply(story, settings)
    before = story.rows("t")
    story.statement(Action.MODIFY_COLUMN, "ALTER TABLE t ...", after)
    apply(story, settings)
    assert story.rows("t") == before
    then = {c.name: row.get(c.name, "y") for c in after.columns}
    if masks != {"n": "null"}:
        story.insert(after, {**then, "id": 2})
        apply(story, settings)
        (one, two) = story.rows("t")
        assert one[1:] == two[1:]


@pytest.mark.parametrize(
    ("made", "masks", "why"),
    [
        (WIDE, {"id": {"constant": 1}}, "masks column id of d.t, which the primary key needs"),
        (
            table(11, "t", "id int", "a varchar(64)", unique=("a",)),
            {"a": "hash"},
            "masks column a of d.t, which the key u2 needs",
        ),
        (
            table(
                11, "t", "id int", "a text", column(3, "g text", generated="upper(`a`)"),
                primary="id",
            ),
            {"a": "hash"},
            "which column g needs",
        ),
        (WIDE, {"n": "hash"}, "can't mask column n of d.t as hash: it holds no text but int"),
        (WIDE, {"n": {"partial": 2}}, "can't mask column n of d.t as partial '2'"),
        (WIDE, {"n": {"constant": "x"}}, "'x' is no value of it"),
        (table(11, "t", "id int", "a varchar(9)"), {"a": "hash"}, "it has room for 9 characters"),
        (table(11, "t", "id int", "a varchar(9)"), {"a": {"constant": "0123456789"}}, "room for 9"),
        (table(11, "t", "id int", "a int not null"), {"a": "null"}, "it is NOT NULL"),
    ],
)  # fmt: skip
def test_a_mask_that_doesnt_fit_stops_by_rule_and_column(
    mariadb: MariaDBServer, tmp_path: Path, made: Table, masks: dict[str, Any], why: str
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(made, "CREATE TABLE t (...)")
    with pytest.raises(SluiceError, match=rf"\[\[filter.columns\]\] 1 .*{why}"):
        apply(story, masking(story, masks))


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"key-env": "SLUICE_TEST_NO_KEY"}, "variable SLUICE_TEST_NO_KEY holds 0 bytes"),
        ({"key-file": "/nowhere/mask.key"}, "/nowhere/mask.key: No such file"),
    ],
)
def test_a_key_that_isnt_there_stops(
    mariadb: MariaDBServer, tmp_path: Path, section: dict[str, str], why: str
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(WIDE, "CREATE TABLE t (...)")
    with pytest.raises(SluiceError, match=why):
        apply(story, masking(story, {"a": "hash"}, section=section | {"relay-log": "clear"}))


def test_row_rules_and_merged_tables_refuse_masks(mariadb: MariaDBServer, tmp_path: Path) -> None:
    story = Story(mariadb, tmp_path)
    story.create(WIDE, "CREATE TABLE t (...)")
    some = {"rows": [{"tables": ["d.t"], "where": "n = 1"}], "mask": SECTION}
    with pytest.raises(SluiceError, match="by column n, which"):
        apply(story, settings_of(story, {"mask": {"n": "null"}}, filter=some))
    routes = Routes((Route("d", "t*", "d", "all", "[[route]] 1"),))
    with pytest.raises(SluiceError, match=r"d\.t, which is merged with other"):
        apply(story, masking(story, {"n": "null"}, routes=routes))


def test_rows_are_selected_by_other_columns_and_masked(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(WIDE, "CREATE TABLE t (...)")
    some = {"rows": [{"tables": ["d.t"], "where": "n = 1"}], "mask": SECTION}
    settings = settings_of(story, {"mask": {"a": "digits"}}, filter=some)
    row: Row = {"id": 1, "a": "x 1", "b": "y", "n": 2}
    story.insert(WIDE, row, {**row, "id": 2, "n": 1})
    row = story.update(WIDE, row, {"n": 1})
    apply(story, settings)
    assert story.rows("t") == [(n, masked("x 1", "digits"), "y", 1) for n in (1, 2)]
    story.update(WIDE, row, {"n": 3})
    apply(story, settings)
    assert story.rows("t") == [(2, masked("x 1", "digits"), "y", 1)]


def test_a_row_that_enters_the_selection_without_a_column_has_its_masked_default(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    old = table(11, "t", "id int", "n int", primary="id")
    nick = column(3, "nick varchar(32) not null", default="boss", origin_default="boss")
    new = story.create(wider(old, nick), "CREATE TABLE t (...)")
    some = {"rows": [{"tables": ["d.t"], "where": "n = 1"}], "mask": SECTION}
    settings = settings_of(story, {"mask": {"nick": "hash"}}, filter=some)
    story.insert(new, {"id": 1, "n": 2, "nick": "boss"})
    # as TiDB writes rows from before the column
    story.changes((new, UPDATE, encode_update(old, {"id": 1, "n": 2}, {"id": 1, "n": 1})))
    apply(story, settings)
    assert story.rows("t") == [(1, 1, hashed("boss", 32))]
    story.changes((new, DELETE, encode_delete(old, {"id": 1, "n": 1})))
    apply(story, settings)
    assert story.rows("t") == []


@pytest.mark.parametrize(
    ("mask", "section", "why"),
    [
        ({"a": "hash"}, {"relay-log": "clear"}, "needs a key: key-env or key-file"),
        ({"a": "hash"}, {"relay-log": "open"}, "one of 'masked', 'clear' expected"),
        ({"a": "hash"}, {"key": "secret"}, "unknown key key; known are key-env"),
        ({"a": "md5"}, SECTION, "one of 'null', 'hash', 'digits', 'email' expected"),
        ({"a": {"partial": -1}}, SECTION, "expected"),
        ({"a": {"constant": True}}, SECTION, "expected"),
        ({"a": "null", "A": "null"}, SECTION, "a is there twice"),
    ],
)
def test_a_mask_that_cannot_be_understood_names_itself(
    mask: dict[str, Any], section: dict[str, str], why: str
) -> None:
    with pytest.raises(RuleError, match=why):
        parse_filter({"columns": [{"tables": ["d.t"], "mask": mask}], "mask": section})


def test_a_rule_cannot_leave_out_what_it_masks() -> None:
    rule = {"tables": ["d.t"], "leave-out": ["A"], "mask": {"a": "null"}}
    with pytest.raises(RuleError, match="leaves out the column a that it masks"):
        parse_filter({"columns": [rule], "mask": SECTION})


def test_settings_refuse_masks_beside_a_catalog_of_clear_tables() -> None:
    document: dict[str, Any] = {
        "upstream": {"pd-urls": "-"},
        "relay": {"url": "file:///relay"},
        "downstream": {"host": "h"},
        "archive": {"url": "file:///archive", "iceberg": "lake"},
        "filter": {"columns": [{"tables": ["d.t"], "mask": {"a": "null"}}], "mask": SECTION},
    }
    with pytest.raises(SettingsError, match=r"masks columns, and \[archive\] iceberg"):
        parse_settings(document)


def test_the_digest_of_rules_knows_masks_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(variable: str, **rule: Any) -> str:
        section = {"key-env": variable, "relay-log": "clear"}
        found: Filter = parse_filter({"columns": [{"tables": ["d.t"], **rule}], "mask": section})[0]
        return rules_digest(found, Routes(()))

    monkeypatch.setenv("SLUICE_TEST_ONE", "one key of many characters")
    one = digest("SLUICE_TEST_ONE", mask={"a": "hash"})
    assert one != digest(VARIABLE, mask={"a": "hash"})
    assert one != digest("SLUICE_TEST_ONE", mask={"a": "digits"})
    # as versions without masks have written it down
    assert digest("SLUICE_TEST_NO_KEY", **{"leave-out": ["a"]}) == "59b4547855e5b45f"

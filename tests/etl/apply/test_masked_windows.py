"""Windows that landing has masked: no clear value is in them, and they are masked once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import SluiceError
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import EventRule, Filter, NameRule
from sluice.etl.changes.rules.landed_masks import LandedMasks
from sluice.etl.history.clear_values import ClearValues, ClearValuesError
from sluice.etl.history.find.query import SearchQuery
from sluice.etl.history.find.run import search
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.landing._masking import OtherMasksError, note_masks
from sluice.etl.settings import Settings
from sluice.relay import RelayLog, read_parts
from sluice.relay.landed_masks import LandedMasksLog
from sluice.tidb.ddl_actions import Action
from tests.etl.apply.ruled_columns import apply, settings_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masked_landing import land_again
from tests.etl.masking import KEY, SECTION, VARIABLE, hashed, masked
from tests.etl.story import Row, Story, column, table, wider

PEOPLE = table(
    11,
    "t",
    "id int",
    "name varchar(64)",
    "phone varchar(20)",
    "born date",
    "note varchar(64)",
    primary="id",
)
MASKS: dict[str, Any] = {
    "name": "hash",
    "phone": "digits",
    "born": {"shift-days": 30, "by": "name"},
}
SECRETS = ("Ada Lovelace", "+44 555 0199", "Charles Babbage", "secret default")


@pytest.fixture(scope="module", autouse=True)
def key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, KEY)
        yield


def masking(story: Story, masks: dict[str, Any], **more: Any) -> Settings:
    return settings_of(story, {"mask": masks}, filter={"mask": SECTION}, **more)


def person(number: int, name: str) -> Row:
    phone, born = "+44 555 0199", f"1815-12-{number:02d}"
    return {"id": number, "name": name, "phone": phone, "born": born, "note": "plain"}


def told(story: Story) -> None:
    """People come, change and go; a column comes with a default that is masked."""
    story.create(PEOPLE, "CREATE TABLE t (...)")
    people = [person(n, SECRETS[2 * (n % 2)]) for n in range(1, 9)]
    story.insert(PEOPLE, *people)
    story.update(PEOPLE, people[0], {"name": "Charles Babbage", "born": "1791-12-26"})
    story.delete(PEOPLE, people[3])
    nick = column(6, "nick varchar(40)", default="secret default", origin_default="secret default")
    wide = wider(PEOPLE, nick)
    story.statement(
        Action.ADD_COLUMN, "ALTER TABLE t ADD nick varchar(40) DEFAULT 'secret default'", wide
    )
    story.insert(wide, person(20, "Ada Lovelace") | {"nick": "secret default"})
    story.update(wide, people[4] | {"nick": "secret default"}, {"note": "changed"})


def everything_in(relay: RelayLog) -> bytes:
    """Every record of a relay log, and every row."""
    windows = list(relay.windows(0))
    rows = read_parts(relay.url, [part for window in windows for part in window.parts])
    return b"".join([*(window.to_json() for window in windows), *rows["row"].to_pylist()])


def test_a_masked_window_has_no_clear_value_and_leaves_the_same_rows_downstream(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    told(story)
    settings = masking(story, MASKS | {"nick": "hash"})
    apply(story, settings)
    expected = story.rows("t")
    assert len(expected) == 8 and hashed("secret default", 40) in expected[-1]
    assert b"secret default" in everything_in(settings.open_relay())
    mariadb.empty()
    landed = land_again(settings, tmp_path)
    apply(story, landed)
    assert story.rows("t") == expected
    held = everything_in(landed.open_relay())
    assert b"plain" in held and hashed("Ada Lovelace").encode() in held
    assert not [secret for secret in SECRETS if secret.encode() in held]


def test_windows_masked_by_fewer_rules_get_the_other_masks_where_they_are_applied(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(PEOPLE, "CREATE TABLE t (...)")
    story.insert(PEOPLE, person(1, "Ada Lovelace"))
    clear = masking(story, MASKS)
    land_again(settings_of(story), tmp_path)
    between = story.now
    story.insert(PEOPLE, person(2, "Ada Lovelace"))
    land_again(masking(story, {"phone": "digits"}), tmp_path, between)
    after, row = story.now, person(1, "Ada Lovelace")
    story.update(PEOPLE, row, {"note": "other"})
    landed = land_again(clear, tmp_path, after)
    apply(story, clear)
    expected = story.rows("t")
    mariadb.empty()
    apply(story, landed)
    assert story.rows("t") == expected
    assert expected[0][2] == masked(row["phone"], "digits")


@pytest.mark.parametrize(
    ("masks", "why"),
    [
        ({"name": "digits", "phone": "digits"}, "masks it otherwise"),
        ({"phone": "digits"}, "no rule here masks it"),
        ({}, "no rule here masks it"),
        (
            {"name": "hash", "phone": "digits", "born": {"shift-days": 3, "by": "name"}},
            "by the clear values of column name",
        ),
    ],
)
def test_other_masks_than_landing_had_stop_by_column(
    mariadb: MariaDBServer, tmp_path: Path, masks: dict[str, Any], why: str
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(PEOPLE, "CREATE TABLE t (...)")
    story.insert(PEOPLE, person(1, "Ada Lovelace"))
    landed = land_again(masking(story, {"name": "hash", "phone": "digits"}), tmp_path)
    filters = masking(story, masks).filters if masks else Filter()
    with pytest.raises(SluiceError, match=why) as caught:
        apply(story, replace(landed, filters=filters))
    said = f"{caught.value} {caught.value.hint}"
    assert "Ada" not in said and "the key by which these windows were landed" in said


def test_another_key_than_landing_had_stops(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(PEOPLE, "CREATE TABLE t (...)")
    landed = land_again(masking(story, {"name": "hash"}), tmp_path)
    monkeypatch.setenv("SLUICE_TEST_OTHER_KEY", "another key of 32 characters")
    section = {"key-env": "SLUICE_TEST_OTHER_KEY"}
    other = settings_of(story, {"mask": {"name": "hash"}}, filter={"mask": section})
    with pytest.raises(SluiceError, match=r"masked as hash with the key [0-9a-f]{16}"):
        apply(story, replace(landed, filters=other.filters))


def test_the_past_is_shown_behind_the_moment_from_which_on_it_is_masked(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(PEOPLE, "CREATE TABLE t (...)")
    story.insert(PEOPLE, person(1, "Ada Lovelace"))
    settings = masking(story, {"name": "hash"})
    land_again(settings_of(story), tmp_path)
    since = story.now
    story.insert(PEOPLE, person(2, "Charles Babbage"))
    landed = land_again(settings, tmp_path, since)
    note_masks(landed, landed.open_relay(), since)

    assert HistoryLog.open(landed).first == since
    assert HistoryLog.open(landed, shows_values=False).first < since
    with pytest.raises(ClearValuesError, match="holds clear values of columns that") as caught:
        ClearValues.of(landed, "it").check_range(since - 1)
    assert str(since) in caught.value.hint

    def found(name: str) -> int:
        wanted = SearchQuery(0, story.now, ("d.t",), where=f"name = '{name}'")
        return len(search(landed, wanted).transactions)

    assert [found(name) for name in ("Charles Babbage", "Ada Lovelace")] == [0, 0]
    assert found(hashed("Charles Babbage")) == 1
    with pytest.raises(ClearValuesError, match="would show clear values"):
        HistoryLog.open(replace(landed, filters=masking(story, {"name": "digits"}).filters))
    with pytest.raises(ClearValuesError, match="would show clear values"):
        HistoryLog.open(replace(landed, relay_log_values="clear"))


def test_settings_that_mask_otherwise_land_nothing_into_a_masked_relay_log(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    settings = masking(story, {"name": "hash"})
    relay = settings.open_relay()
    note_masks(settings, relay, 7)
    note_masks(settings, relay, 9)
    other = RelayLog.of_pipeline(relay.url, "other", "elsewhere")
    for filters in (Filter(), masking(story, {"name": "digits"}).filters):
        with pytest.raises(OtherMasksError, match="of pipeline 'other' mask"):
            note_masks(replace(settings, filters=filters), other, 11)
    known = LandedMasksLog(relay.storage)
    assert known.load().since_ts == 7
    note_masks(replace(settings, filters=masking(story, {"name": "digits"}).filters), relay, 11)
    assert known.load().since_ts == 11
    note_masks(replace(settings, filters=Filter(), relay_log_values="clear"), other, 13)
    assert known.load().digest == ""


@pytest.mark.parametrize(
    ("kind", "mask"),
    [
        ("add", "none yet"),
        ("modify", "hash"),
        *(
            pytest.param(*case, marks=pytest.mark.beyond_ci)
            for case in (("add", "hash"), ("add", "by"), ("modify", "by"), ("modify", "none yet"))
        ),
    ],
)
def test_columns_that_a_ddl_is_still_making_are_not_landed(
    mariadb: MariaDBServer, tmp_path: Path, kind: str, mask: str
) -> None:
    masks = {"hash": {"name": "hash"}, "by": MASKS, "none yet": {}}[mask]
    if kind == "modify" and not masks:
        masks = {"name": "null"}
    story = Story(mariadb, tmp_path)
    story.create(PEOPLE, "CREATE TABLE t (...)")
    story.insert(PEOPLE, *(person(n, "Ada Lovelace") for n in range(1, 4)))
    if kind == "add":
        nick = column(
            6, "nick varchar(40)", default="secret default", origin_default="secret default"
        )
        early = done = wider(PEOPLE, nick)
        text = "ALTER TABLE t ADD nick varchar(40) DEFAULT 'secret default'"
        action, made = Action.ADD_COLUMN, {"nick": "secret default"}
    else:
        early = wider(PEOPLE, column(6, "_Col$_name_0 varchar(70)"))
        name = replace(column(6, "name varchar(70)"), offset=1)
        done = replace(PEOPLE, columns=(PEOPLE.columns[0], name, *PEOPLE.columns[2:]))
        text = "ALTER TABLE t MODIFY name varchar(70)"
        action, made = Action.MODIFY_COLUMN, {"_Col$_name_0": "Charles Babbage"}
    people = [person(n, "Charles Babbage") | made for n in range(11, 14)]
    story.insert(early, *people)
    story.insert(PEOPLE, person(20, "Ada Lovelace"))
    story.update(early, people[0], {"note": "changed"})
    story.delete(early, people[1])
    story.statement(action, text, done)
    settings = masking(story, masks | {"nick": "hash"})
    apply(story, settings)
    expected = story.rows("t")
    assert len(expected) == 6
    assert b"Charles Babbage" in everything_in(settings.open_relay())
    mariadb.empty()
    landed = land_again(settings, tmp_path)
    apply(story, landed)
    assert story.rows("t") == expected
    held = everything_in(landed.open_relay())
    clear = [secret for secret in SECRETS if secret.encode() in held]
    assert b"changed" in held
    assert not set(clear) & {"secret default", *(["Charles Babbage"] if "name" in masks else [])}


@pytest.mark.parametrize("lands", [True, False])
def test_a_ddl_that_masks_stop_at_shows_no_default(
    mariadb: MariaDBServer, tmp_path: Path, lands: bool
) -> None:
    story = Story(mariadb, tmp_path)
    nick = column(6, "nick varchar(40)", default="secret default", origin_default="secret default")
    made = wider(PEOPLE, nick)
    story.create(made, "CREATE TABLE t (...)")
    settings = masking(story, {"nick": "hash"})
    apply(story, settings)
    after = replace(made, columns=(*made.columns[:5], replace(made.columns[5], flen=50)))
    text = "ALTER TABLE t MODIFY nick varchar(50) DEFAULT 'secret default' COMMENT 'secret default'"
    story.statement(Action.MODIFY_COLUMN, text, after)
    ddl_ts = story.now
    with pytest.raises(
        SluiceError, match=r"hexadecimal digits.*Statement: ALTER TABLE t"
    ) as caught:
        if lands:
            check_landing(settings)
        else:
            apply(story, settings)
    said = f"{caught.value} {caught.value.hint}"
    assert "secret default" not in said and f"sluice ddl skip {ddl_ts}" in said
    check_landing(settings, decided=True)


def check_landing(settings: Settings, *, decided: bool = False) -> None:
    """Check the windows' DDL as landing does."""
    masks = LandedMasks(settings.filters)
    for window in settings.open_relay().windows(0):
        masks.check(RecordedSchema.from_window(window), lambda _: decided)


@pytest.mark.parametrize("by", ["rule", "columns"])
def test_a_statement_that_landing_has_cut_stops_where_its_text_is_needed(
    mariadb: MariaDBServer, tmp_path: Path, by: str
) -> None:
    story = Story(mariadb, tmp_path)
    nick = column(6, "nick varchar(40)", default="DROP", origin_default="DROP")
    made = wider(PEOPLE, nick)
    story.create(made, "CREATE TABLE t (...)")
    changed = column(7, "memo varchar(70)") if by == "columns" else made.columns[4]
    columns = (*made.columns[:4], replace(changed, offset=4))
    text = "ALTER TABLE t DROP nick" + (", CHANGE note memo varchar(70)" if by == "columns" else "")
    kind = Action.MULTI_SCHEMA_CHANGE if by == "columns" else Action.DROP_COLUMN
    story.statement(kind, text, replace(made, columns=columns))
    settings = masking(story, {"nick": "hash"})
    landed = land_again(settings, tmp_path)
    if by == "rule":
        names = NameRule("d", "t", "a rule of events")
        rule = EventRule(names, statements=("DROP nick",))
        landed = replace(landed, filters=replace(landed.filters, events=(rule,)))
    with pytest.raises(SluiceError, match="landing has cut its text") as caught:
        apply(story, landed)
    assert "sluice ddl replace" in caught.value.hint

"""Transactions of one commit timestamp in the past are found, shown and taken back one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.cli import main
from sluice.etl.history.find import (
    FoundTransaction,
    SearchQuery,
    TimeBudget,
    load_transaction,
    load_value,
    recent_page,
)
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.history.undo import UndoError, read_transaction
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.relay import RelayLog
from tests.etl.history.as_of.asking import rows_as_of
from tests.etl.shared_story import SharedStory
from tests.etl.story import table
from tests.examples import examples

ALL = 2**62
ONE = table(11, "one", "id int", "v int", primary="id")
OTHER = table(12, "other", "id int", "v int", primary="id")


@pytest.fixture
def story(tmp_path: Path) -> SharedStory:
    """Two transactions of one timestamp, the second of two rows, behind one of its own."""
    story = SharedStory(None, tmp_path)  # type: ignore[arg-type] # nothing is applied
    story.create(ONE, "CREATE TABLE one …")
    story.create(OTHER, "CREATE TABLE other …")
    story.insert(ONE, {"id": 1, "v": 1})
    with story.together(again=True):
        story.update(ONE, {"id": 1, "v": 1}, {"id": 1, "v": 2})
        story.insert(OTHER, {"id": 7, "v": 7}, {"id": 8, "v": 8})
    return story


def past(story: SharedStory) -> HistoryLog:
    return HistoryLog.open(Settings(Upstream("unused"), Relay(story.url), Downstream(type="file")))


def starts(story: SharedStory) -> tuple[int, int]:
    """The start timestamps of the two."""
    return story.now - 11, story.now - 1


def test_find_names_each_of_them(story: SharedStory) -> None:
    found = recent_page(
        past(story), SearchQuery(0, ALL, kinds=("insert", "update"), order="newest")
    ).found
    shared = [
        one for one in found if isinstance(one, FoundTransaction) and one.commit_ts == story.now
    ]
    assert [(one.start_ts, one.rows) for one in shared] == [
        (starts(story)[1], 2),
        (starts(story)[0], 1),
    ]


def test_the_command_says_when_each_of_them_started(
    story: SharedStory, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path(story.url.removeprefix("file://")).parent / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "{story.url}"\n'
        '[downstream]\ntype = "file"\n[file]\ndir = "/nowhere"\n'
    )
    with pytest.raises(SystemExit) as ended:
        main(["find", "--config", str(config)])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(f"started at {start}" in said for start in starts(story))
    assert f"started at {story.now - 21}" not in said


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_going_on_behind_a_page_loses_and_repeats_none(story: SharedStory, limit: int) -> None:
    until, seen = ALL, []
    for _ in range(20):
        page = recent_page(
            past(story), SearchQuery(0, until, limit=limit), TimeBudget(seconds=60.0)
        )
        seen += [
            (one.commit_ts, one.start_ts) for one in page.found if isinstance(one, FoundTransaction)
        ]
        until = page.through
        if page.complete:
            break
    assert seen == [(story.now, start) for start in starts(story)[::-1]] + [
        (story.now - 20, story.now - 21)
    ]


def test_one_of_them_is_shown_alone_and_the_other_is_named(story: SharedStory) -> None:
    first, second = starts(story)
    shown = load_transaction(past(story), story.now, start_ts=second)
    assert (shown.start_ts, shown.others, len(shown.rows)) == (second, (first,), 2)
    shown = load_transaction(past(story), story.now)
    assert (shown.start_ts, shown.others, len(shown.rows)) == (first, (second,), 1)
    known = past(story)
    assert load_value(known, story.now, 0, "v", old=False, start_ts=first) == "2"
    assert load_value(known, story.now, 0, "v", old=False, start_ts=second) == "7"


def test_undo_takes_the_one_that_is_named_and_asks_which_if_none_is(story: SharedStory) -> None:
    first, second = starts(story)
    with pytest.raises(UndoError, match=f"{first}, {second}") as error:
        read_transaction(past(story), story.now)
    assert f"--start-ts {first}" in error.value.hint
    for start, name, rows in ((first, "one", 1), (second, "other", 2)):
        transaction = read_transaction(past(story), story.now, start_ts=start)
        assert [(each.then.name, each.changes.num_rows) for each in transaction.tables] == [
            (name, rows)
        ]
    with pytest.raises(UndoError, match="no transaction"):
        read_transaction(past(story), story.now, start_ts=first + 1)


def test_undo_asks_nothing_where_filters_leave_one(story: SharedStory) -> None:
    changes = read_transaction(past(story), story.now - 20).tables[0].changes
    assert changes["start_ts"].to_pylist() == [story.now - 21]


@settings(
    deadline=None,
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    groups=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), max_size=6)
)
def test_tables_as_of_any_moment_have_what_all_of_a_timestamp_left(
    groups: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    story = SharedStory(None, tmp_path_factory.mktemp("story"))  # type: ignore[arg-type]
    story.create(ONE, "CREATE TABLE one …")
    rows: dict[int, int] = {}
    expected = {}
    for number, keys in enumerate(groups):
        with story.together(again=number % 2 == 0):  # a transaction each, of one row each
            for key in keys:
                if key in rows and number % 3 == 2:
                    story.delete(ONE, {"id": key, "v": rows.pop(key)})
                elif key in rows:
                    story.update(ONE, {"id": key, "v": rows[key]}, {"id": key, "v": number})
                    rows[key] = number
                else:
                    story.insert(ONE, {"id": key, "v": number})
                    rows[key] = number
        expected[story.now] = dict(rows)
    log = RelayLog.open(story.url)
    for ts, wanted in expected.items():
        found = rows_as_of(log, ts, ["d.one"])["d.one"].to_pylist()
        assert {row["id"]: row["v"] for row in found} == wanted

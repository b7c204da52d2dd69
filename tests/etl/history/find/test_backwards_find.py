"""The past is looked through backwards in small steps, and nothing is lost or told twice between
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.history.errors import SearchDeadlineError
from sluice.etl.history.find import (
    ConditionError,
    FoundDdl,
    FoundTransaction,
    SearchQuery,
    TimeBudget,
    first_groups,
    recent_page,
    search,
)
from sluice.etl.history.find import recent as backwards
from sluice.etl.history.find.results import joined_groups
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.etl.settings.job_sections import Archive
from sluice.relay import RelayGapError, RelayLog
from sluice.relay import archive as relay_archive
from sluice.relay.window import window_path
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.story import Story, table

ALL = 1 << 62


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A relay log whose older half is in the archive, too, in segments of a few windows."""
    folder = tmp_path_factory.mktemp("backwards")
    relay = RelayLog.open((folder / "relay").as_uri())
    land(RECORDINGS / "shop", relay.url, 300)
    made = relay_archive.Archive.open((folder / "archive").as_uri())
    windows = list(relay.windows(0))
    for at in range(0, len(windows) // 2, 3):
        made.append(write_log(relay, made, windows[at : at + 3]))
    relay.purge(windows[len(windows) // 4].hi)
    return settings_of(relay.url, made.storage.url)


def write_log(
    relay: RelayLog, made: relay_archive.Archive, windows: Any
) -> relay_archive.ArchiveSegment:
    return relay_archive.write_log(
        relay.storage, made.storage, windows, f"t{windows[0].lo}"
    ).segment()


def settings_of(relay: str, archive: str = "") -> Settings:
    return Settings(
        Upstream("unused"), Relay(relay), Downstream(type="file"), archive=Archive(archive)
    )


def steps(settings: Settings, query: SearchQuery, seconds: float) -> Iterator[backwards.RecentPage]:
    """One request after the other, until the past is looked through."""
    indexes = relay_archive.SegmentIndexCache()
    while True:
        done = recent_page(HistoryLog.open(settings, indexes), query, TimeBudget(seconds))
        yield done
        if done.complete:
            return
        assert done.through < query.until, "it goes on"
        query = replace(query, until=done.through)


@pytest.mark.quick_cases("group3")
@pytest.mark.parametrize("group", [("minute",), ("table",), ("shape",), ("minute", "table")])
def test_groups_of_all_steps_together_are_those_of_the_search(
    shop: Settings, group: tuple[Any, ...]
) -> None:
    query = SearchQuery(0, ALL, kinds=("delete", "update"), limit=100_000, group=group)
    pages = list(steps(shop, query, 0.0))
    assert len(pages) > 3
    assert not any(page.found for page in pages)
    found = first_groups(joined_groups(*(page.groups for page in pages)), query)
    assert found == first_groups(search(shop, query).groups, query)
    assert sum(one.deletes for one in found) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "wanted",
    [
        {"tables": ("bank.cart",)},
        *(
            pytest.param(wanted, marks=pytest.mark.slow)
            for wanted in ({"kinds": ("ddl",)}, {"where": "id = 7"})
        ),
    ],
    ids=str,
)
def test_step_by_step_everything_that_find_finds_comes_once_the_newest_first(
    shop: Settings, wanted: dict[str, Any]
) -> None:
    everything = search(shop, SearchQuery(0, ALL, **wanted, limit=1_000_000))
    expected = sorted([*everything.transactions, *everything.ddls], key=lambda one: -one.commit_ts)
    assert expected
    for limit, seconds in ((max(7, len(expected) // 20), 0.0), (max(50, len(expected) // 3), 60.0)):
        pages = list(steps(shop, SearchQuery(0, ALL, **wanted, limit=limit), seconds))
        assert [one for page in pages for one in page.found] == expected
        assert all(len(page.found) <= limit for page in pages)
        assert seconds or all(page.windows <= 1 for page in pages), (
            "without patience it is one window"
        )


def test_a_row_is_found_by_its_key_through_all_types_of_keys(tmp_path: Path) -> None:
    story = Story(None, tmp_path)  # type: ignore[arg-type] # nothing is applied
    numbers = story.create(table(11, "n", "id int", "v int", primary="id"), "CREATE TABLE n …")
    pairs = story.create(
        table(12, "p", "a varchar(20)", "b date", primary="a,b"), "CREATE TABLE p …"
    )
    raw = story.create(table(13, "r", "k varbinary(8)", "v int", primary="k"), "CREATE TABLE r …")
    story.insert(numbers, {"id": 7, "v": 1}, {"id": 8, "v": 1})
    story.update(numbers, {"id": 8, "v": 1}, {"id": 8, "v": 2})
    story.insert(pairs, {"a": "Berlin, Mitte", "b": "2026-11-22"}, {"a": "7", "b": "2026-11-22"})
    story.insert(raw, {"k": b"\x00\xff", "v": 1}, {"k": b"7", "v": 2})

    def keys(text: str, *globs: str) -> list[tuple[str, ...]]:
        done = recent_page(
            HistoryLog.open(settings_of(story.url)), SearchQuery(0, ALL, globs, key=text)
        )
        found = [one for one in done.found if isinstance(one, FoundTransaction)]
        return [rows.keys for one in found for rows in one.tables]

    assert keys("8") == [("id=8",), ("id=8",)]
    assert keys("7", "d.n") == [("id=7",)]
    assert keys("'Berlin, Mitte', 2026-11-22") == [("a='Berlin, Mitte', b='2026-11-22'",)]
    assert keys("'Berlin, Mitte'") == [("a='Berlin, Mitte', b='2026-11-22'",)]
    assert keys("0x00ff") == [("k=0x00ff",)]
    assert keys("9") == keys("7, 2026-11-21") == keys("no number", "d.n") == []
    with pytest.raises(ConditionError):
        keys(" ")


def test_a_window_that_is_too_large_for_a_page_is_named_and_its_ddl_still_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(None, tmp_path)  # type: ignore[arg-type] # nothing is applied
    made = story.create(table(11, "n", "id int", primary="id"), "CREATE TABLE n …")
    story.insert(made, *({"id": i} for i in range(20)))
    story.insert(made, {"id": 20})
    monkeypatch.setattr(backwards, "MAX_CHANGES", 10)
    done = recent_page(HistoryLog.open(settings_of(story.url)), SearchQuery(0, ALL))
    assert [type(one) for one in done.found] == [FoundTransaction, FoundDdl, FoundDdl]
    (large,) = done.large
    assert (large.changes, done.complete) == (20, True)


def test_what_was_found_before_a_hole_is_shown_and_the_hole_is_named(tmp_path: Path) -> None:
    story = Story(None, tmp_path)  # type: ignore[arg-type] # nothing is applied
    made = story.create(table(11, "n", "id int", primary="id"), "CREATE TABLE n …")
    for i in range(3):
        story.insert(made, {"id": i})
    relay = RelayLog.open(story.url)
    missing = list(relay.windows(0))[2]
    relay.storage.remove(window_path(missing.lo))
    done = recent_page(HistoryLog.open(settings_of(story.url)), SearchQuery(0, ALL))
    assert len(done.found) == 2
    assert str(missing.lo) in done.problem
    assert not done.complete
    with pytest.raises(RelayGapError):
        recent_page(
            HistoryLog.open(settings_of(story.url)), SearchQuery(0, ALL, tables=("no.such",))
        )


def test_a_search_that_passes_its_deadline_ends_and_names_the_command_without_one(
    shop: Settings,
) -> None:
    past = HistoryLog.open(shop, relay_archive.SegmentIndexCache())
    clock = iter([0.0, *[100.0] * 1_000])
    with pytest.raises(SearchDeadlineError, match="5 s") as refused:
        recent_page(past, SearchQuery(0, ALL, where="id = 1"), TimeBudget(1.0, lambda: next(clock)))
    assert "sluice find" in refused.value.hint

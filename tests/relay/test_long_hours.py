"""An hour of many windows: a store is asked as often for its ends as for those of a short one."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from relaykit import BASE, HOUR, window

from sluice.relay import RelayLog, WindowRecord
from sluice.relay.storage import LocalStorage, Storage
from sluice.relay.storage._object_store import ObjectStorage
from sluice.tidb import tso
from tests.object_store.s3_server import S3Server

STEP = tso.span(70)


def landed(storage: Storage, first: int, number: int) -> list[WindowRecord]:
    """Land so many windows from a moment (TSO) on, several at a time."""
    made = [window(first + n * STEP, first + (n + 1) * STEP) for n in range(number)]
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda one: storage.replace(one.path, one.to_json()), made))
    return made


@pytest.mark.slow
def test_the_ends_of_an_hour_of_thousands_of_windows_take_the_requests_of_three(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = BASE + HOUR // 2
    monkeypatch.setattr(tso, "wall_clock", lambda: now)
    asked = []
    for name, number in (("short", 3), ("long", 2100)):
        log = RelayLog.open(s3_server.url(name))
        made = landed(log.storage, now - number * STEP, number)
        s3_server.counted()
        assert (log.first(), log.last()) == (made[0], made[-1])
        asked.append(s3_server.counted())
    assert asked[0] == asked[1]
    assert asked[1]["LIST"] == 4  # the hours and a part of one, for each end


STORES: list[Callable[[Path], Storage]] = [
    lambda folder: LocalStorage(folder, "file"),
    lambda _: ObjectStorage(MemoryStore(), "memory"),
]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("age_ms", [0, 30_000, 600_000, 7_200_000], ids="{}ms ago".format)
def test_the_newest_window_is_found_whenever_it_was_landed(
    tmp_path: Path, store: Callable[[Path], Storage], age_ms: int
) -> None:
    log = RelayLog(store(tmp_path))
    made = landed(log.storage, tso.wall_clock() - tso.span(age_ms) - 40 * STEP, 40)
    assert (log.first(), log.last()) == (made[0], made[-1])


@pytest.mark.parametrize("store", STORES)
def test_a_log_of_the_future_or_the_past_has_its_ends(
    tmp_path: Path, store: Callable[[Path], Storage]
) -> None:
    log = RelayLog(store(tmp_path))
    assert log.first() is None and log.last() is None
    old = landed(log.storage, BASE, 30)
    assert (log.first(), log.last()) == (old[0], old[-1])
    new = landed(log.storage, tso.wall_clock() + 2 * HOUR, 3)
    assert (log.first(), log.last()) == (old[0], new[-1])


@pytest.mark.parametrize("store", STORES)
def test_what_is_purged_while_one_looks_is_passed_over(
    tmp_path: Path, store: Callable[[Path], Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RelayLog(store(tmp_path))
    made = landed(log.storage, BASE, 30)
    listed = type(log.storage).names_after

    def purging(self: Storage, path: str, after: str = "", limit: int | None = None) -> list[str]:
        names = listed(self, path, after, limit)
        for one in made[:20]:
            self.remove(one.path)
        return names

    monkeypatch.setattr(type(log.storage), "names_after", purging)
    assert log.first() == made[20]


@pytest.mark.parametrize("store", STORES)
def test_names_after_one_are_those_behind_it(
    tmp_path: Path, store: Callable[[Path], Storage]
) -> None:
    storage = store(tmp_path)
    for name in ("a", "b", "c"):
        storage.replace(f"there/{name}", b"1")
    assert storage.names_after("there") == ["a", "b", "c"]
    assert storage.names_after("there", "a") == ["b", "c"]
    assert storage.names_after("there", "aa", 1) == ["b"]
    assert storage.names_after("there", "c") == storage.names_after("nowhere", "a", 3) == []


def test_an_hour_that_changes_no_more_is_listed_once_and_one_that_does_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RelayLog.open(tmp_path.as_uri())
    made = landed(log.storage, BASE, 30)
    folder = (tmp_path / made[0].path).parent
    listed: list[str] = []
    list_names = LocalStorage.names

    def counted(self: LocalStorage, path: str) -> list[str]:
        listed.append(path)
        return list_names(self, path)

    monkeypatch.setattr(LocalStorage, "names", counted)

    def looked_up(one: WindowRecord) -> int:
        """How often the hour is listed to find it."""
        listed.clear()
        assert log.find(one.hi - 1) == one
        return listed.count(f"windows/{folder.name}")

    assert [looked_up(made[7]), looked_up(made[8])] == [1, 1], "it has just changed"
    os.utime(folder, (1, 1))
    assert [looked_up(made[7]), looked_up(made[8]), looked_up(made[29])] == [1, 0, 0]
    later = landed(log.storage, made[-1].hi, 2)
    assert [looked_up(later[1]), looked_up(later[0])] == [1, 1]
    os.utime(folder, (2, 2))
    (tmp_path / made[0].path).unlink()
    os.utime(folder, (3, 3))
    assert looked_up(later[1]) == 1
    assert log.find(made[0].hi - 1) == made[1]

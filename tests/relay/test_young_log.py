"""A relay log that has just been begun: of two who begin one is refused, and a store whose lists
know nothing of it yet doesn't hide it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.relay import (
    SKIP,
    Override,
    RelayCorruptError,
    RelayLog,
    WindowConflictError,
    WindowRecord,
)
from sluice.relay.storage import LocalStorage
from tests.object_store.proxy import Fault
from tests.object_store.s3_server import S3Server
from tests.relay.relaykit import BASE, HOUR, batch, window


@pytest.fixture
def unlisted(s3_server: S3Server) -> Callable[[], RelayLog]:
    """The relay log as one process after the other opens it, each with empty lists."""
    s3_server.inject(Fault("lag", seconds=600))
    return lambda: RelayLog.open(s3_server.url())


def begun(log: RelayLog, lo: int, hi: int, token: str = "t") -> WindowRecord:
    made = window(lo, hi, [log.write_part(lo, hi, token, 0, [batch([(hi, 0)])])], token=token)
    log.begin(made)
    return made


def test_a_second_process_finds_what_no_list_knows_of(unlisted: Callable[[], RelayLog]) -> None:
    one = unlisted()
    landed = [begun(one, BASE, BASE + 10)]
    for lo, hi in (
        (BASE + 10, BASE + 20),
        (BASE + 20, BASE + HOUR),
        (BASE + HOUR, BASE + HOUR + 5),
    ):
        one.commit(window(lo, hi))
        landed.append(window(lo, hi))
    other = unlisted()
    assert other.storage.names("windows") == []
    assert (other.first(), other.last()) == (landed[0], landed[-1])
    assert list(other.windows(0)) == landed
    assert [other.find(ts) for ts in (BASE - 1, BASE + 15, BASE + HOUR + 1)] == [
        landed[0],
        landed[1],
        landed[3],
    ]
    assert other.find(BASE + HOUR + 5) is None


@pytest.mark.parametrize("store", ["folder", "unlisted"])
def test_of_many_who_begin_at_a_time_each_somewhere_else_one_lands(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    reopened = (
        request.getfixturevalue("unlisted")
        if store == "unlisted"
        else lambda: RelayLog.open(tmp_path.as_uri())
    )

    def begin(number: int) -> bool:
        try:
            begun(reopened(), BASE + number, BASE + 100 + number, f"t{number}")
        except WindowConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(begin, range(8)))
    log = reopened()
    assert sum(won) == 1
    assert log.begun() == log.first() == log.last() == next(log.windows(0))
    assert log.begun().lo == BASE + won.index(True)


def test_who_was_killed_while_it_began_has_begun_and_another_goes_on_there(tmp_path: Path) -> None:
    log = RelayLog.open(tmp_path.as_uri())
    made = begun(log, BASE, BASE + 10)
    log.storage.remove(made.path)
    assert log.last() is None
    with pytest.raises(WindowConflictError, match="or elsewhere"):
        log.begin(window(BASE + 3, BASE + 30))
    assert log.begun() == made
    assert log.last() == made


def test_windows_that_somebody_removed_do_not_come_back_without_their_parts(tmp_path: Path) -> None:
    log = RelayLog.open(tmp_path.as_uri())
    made = begun(log, BASE, BASE + 10)
    log.storage.remove(made.path)
    log.storage.remove(made.parts[0].path)
    with pytest.raises(RelayCorruptError, match=r"first one began at .* is gone, too"):
        log.begun()
    log.storage.remove("first-window.json")
    assert log.begun() is None
    begun(log, BASE + 50, BASE + 60, "later")


def test_a_decision_that_no_list_knows_of_can_be_taken_back(
    unlisted: Callable[[], RelayLog],
) -> None:
    unlisted().overrides.add(Override(5, SKIP))
    assert unlisted().overrides.remove(5)
    assert not unlisted().overrides.remove(5)


class OneOldList(LocalStorage):
    """The first list of an hour's windows is one of before there were any."""

    lists_may_lag = True

    def names(self, path: str) -> list[str]:
        if path.startswith("windows/") and not self.__dict__.pop("has_listed", False):
            self.has_listed = True
            return []
        return super().names(path)


def test_a_list_that_is_older_than_the_next_one_makes_no_gap(tmp_path: Path) -> None:
    log = RelayLog.open(tmp_path.as_uri())
    for lo in (BASE, BASE + 10):
        log.commit(window(lo, lo + 10))
    lagging = RelayLog(OneOldList(tmp_path, tmp_path.as_uri()))
    assert lagging.find(BASE + 5) in (None, window(BASE, BASE + 10))
    assert lagging.find(BASE + 5) == window(BASE, BASE + 10)

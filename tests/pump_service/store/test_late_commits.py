"""A commit that comes below what readers have been given: none of them goes on as if nothing were
missing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.pump_service.store import Store
from sluice.pump_service.store.errors import MissedCommitError
from sluice.pump_service.store.late import LateCommit
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    commit,
    eventually,
    prewrite,
    pulled,
    rollback,
    settle,
    transactions,
    window,
    write,
)

_LATE = [prewrite(BASE + 7), commit(BASE + 7, BASE + 8)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "pump", OPTIONS)
    write(opened, *transactions(5))
    settle(opened, opened.max_commit_ts)
    eventually(opened.all_matched)
    yield opened
    opened.close()


def come_late(store: Store) -> int:
    """A commit that is late; through where readers may be."""
    write(store, *_LATE)
    eventually(lambda: store.stats().late_commits > 0)
    eventually(lambda: bool(store.late_behind(BASE + 8)))
    return store.max_commit_ts


def test_it_is_said_to_readers_that_may_lack_it_over_restarts_until_an_operator_removes_the_file(
    store: Store, tmp_path: Path
) -> None:
    top = come_late(store)
    found = [LateCommit(BASE + 8, BASE + 7, top)]
    assert store.late_behind(top) == store.late_behind(BASE + 8) == found
    assert store.late_behind(BASE + 7) == [], "this reader has it before it"
    assert BASE + 8 in [row[0] for row in window(store)]
    store.close()
    again = Store.open(tmp_path / "pump", OPTIONS)
    assert again.late_behind(top) == found
    (tmp_path / "pump" / "late_commits").unlink()
    assert again.late_behind(top) == []
    again.close()


def test_a_stream_that_has_passed_it_ends_and_so_does_one_that_goes_on_from_there(
    store: Store,
) -> None:
    stop = threading.Event()
    stream = store.pull(BASE + 8, stop)
    assert next(stream).commit_ts == BASE + 150
    top = come_late(store)
    with pytest.raises(
        MissedCommitError, match=f"commit {BASE + 8} of transaction {BASE + 7} came after"
    ):
        for _ in stream:
            pass
    for after in (BASE + 8, BASE + 150, top):
        with pytest.raises(MissedCommitError, match="rm "):
            next(store.pull(after, stop))
    assert [ts for ts, *_ in pulled(store, top, BASE + 7)][:2] == [BASE + 8, BASE + 150]
    write(store, prewrite(top + 10), commit(top + 10, top + 20))
    settle(store, top + 20)
    assert next(store.pull(top + 1, stop)).commit_ts == top + 20, (
        "it was behind what readers had been given"
    )
    (store.data_dir / "late_commits").unlink()
    assert next(store.pull(BASE + 8, stop)).commit_ts == BASE + 150
    stop.set()


def test_a_commit_that_contradicts_a_verdict_is_late(store: Store) -> None:
    start = BASE + 700
    write(store, prewrite(start))
    eventually(lambda: store.is_open(start))
    store.decide(start, 0)
    top = settle(store, BASE + 1000)
    write(store, commit(start, start + 5))
    eventually(lambda: bool(store.late_behind(top)))
    assert [late[:2] for late in store.late_behind(top)] == [(start + 5, start)]
    write(store, commit(start, start + 5), rollback(BASE + 1200))
    settle(store, BASE + 1300)
    assert store.stats().late_commits == 1, "the same again"


@pytest.mark.parametrize("how", ["nothing after", "settled window"])
def test_a_reader_that_was_told_without_a_mark_what_there_is_has_passed_it(
    store: Store, how: str
) -> None:
    top = store.max_commit_ts
    if how == "nothing after":
        assert store.has_nothing_after(top, BASE + 2000)
    else:
        assert (
            store.settled_window(BASE, BASE + 2000, BASE, 1000, 1 << 20, is_passing=True)
            is not None
        )
    write(store, prewrite(BASE + 1500), commit(BASE + 1500, BASE + 2000))
    eventually(lambda: bool(store.late_behind(BASE + 2000)))


def test_a_file_that_cannot_be_read_is_no_reason_not_to_start(tmp_path: Path) -> None:
    Store.open(tmp_path, OPTIONS).close()
    (tmp_path / "late_commits").write_text("1 2\nrubbish\n3 4 5\n")
    store = Store.open(tmp_path, OPTIONS)
    assert store.late_behind(10) == [LateCommit(3, 4, 5)]
    store.close()

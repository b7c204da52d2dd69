"""Whoever waits for a mark indexes what lies before it in its own thread, if the indexer rests."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.pump_service.store import Store, indexer
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    Answer,
    commit,
    eventually,
    prewrite,
    transactions,
    window,
    write,
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Its indexer does nothing by itself for as long as a test may take."""
    monkeypatch.setattr(indexer, "_MAX_LINGER_S", 600.0)
    opened = Store.open(tmp_path / "pump", dataclasses.replace(OPTIONS, save_interval_s=600.0))
    yield opened
    opened.close()


class Indexing:
    """Notes who writes into the index; the first `fails` times it goes wrong."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, fails: int = 0) -> None:
        self.threads: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        put = store._index.put_batch

        def noted(*columns: object) -> None:
            self.threads.append(threading.current_thread().name)
            self.begun.set()
            assert self.go_on.wait(60)
            if len(self.threads) <= fails:
                raise OSError(5, "Input/output error")
            put(*columns)  # type: ignore[arg-type]

        monkeypatch.setattr(store._index, "put_batch", noted)


def rests(store: Store) -> bool:
    return store._indexer._is_resting and store._writer._waiting


def test_who_waits_for_a_mark_indexes_what_lies_before_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: rests(store))
    indexing = Indexing(store, monkeypatch)
    write(store, *transactions(3))
    top = BASE + 10_000
    eventually(lambda: store._writer._waiting)
    assert store.barrier(top, 60) == top
    assert indexing.threads == ["MainThread"]
    assert len(window(store, 0, top)) == 3
    assert store.all_matched()


def test_what_comes_while_somebody_else_indexes_comes_behind_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: rests(store))
    indexing = Indexing(store, monkeypatch)
    indexing.go_on.clear()
    write(store, prewrite(BASE), commit(BASE, BASE + 10))
    eventually(lambda: store._writer._waiting)
    reached: list[int] = []
    waiting = threading.Thread(
        target=lambda: reached.append(store.barrier(BASE + 20, 60)), name="waiting"
    )
    waiting.start()
    assert indexing.begun.wait(60)
    assert not store.all_matched()
    write(store, prewrite(BASE + 30), commit(BASE + 30, BASE + 40))
    second = threading.Thread(
        target=lambda: reached.append(store.barrier(BASE + 50, 60)), name="second"
    )
    second.start()
    eventually(lambda: store._indexer._is_wanted)
    assert indexing.threads == ["waiting"]
    indexing.go_on.set()
    waiting.join(60)
    second.join(60)
    assert sorted(reached)[-1] == BASE + 50 and indexing.threads == ["waiting", "pump-indexer"]
    assert [row[0] for row in window(store, 0, BASE + 50)] == [BASE + 10, BASE + 40]


def test_an_index_that_fails_there_is_read_again_from_the_value_log(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: rests(store))
    indexing = Indexing(store, monkeypatch, fails=1)
    write(store, *transactions(3))
    top = BASE + 10_000
    eventually(lambda: store._writer._waiting)
    assert store.barrier(top, 60) == top
    assert indexing.threads[0] == "MainThread"
    assert len(window(store, 0, top)) == 3
    assert store.stats().index_errors == 1


def test_after_an_index_failed_elsewhere_no_mark_passes_until_it_is_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: rests(store))
    Indexing(store, monkeypatch, fails=1)
    write(store, *transactions(3))
    top = BASE + 10_000
    eventually(lambda: store._writer._waiting)
    with monkeypatch.context() as patch:
        # its thread has not had its turn yet
        patch.setattr(store._indexer._work, "notify", lambda: None)
        assert store.barrier(top, 0) < BASE
        assert store.barrier(top + 1, 0) < BASE
        assert not store.all_matched()
    store._indexer._wake()
    assert store.barrier(top + 1, 60) == top + 1
    assert len(window(store, 0, top + 1)) == 3


def test_an_index_that_failed_elsewhere_and_cant_be_opened_again_is_not_idle(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: rests(store))
    Indexing(store, monkeypatch, fails=1)
    monkeypatch.setattr(indexer, "_RETRY_INTERVAL_S", 0.01)
    write(store, *transactions(3))
    eventually(lambda: store._writer._waiting)
    top = BASE + 10_000
    with monkeypatch.context() as patch:

        def refused() -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(store._index, "reopen", refused)
        store.barrier(top, 0)
        eventually(lambda: store.stats().index_errors > 2)
        assert not store.all_matched()
    assert store.barrier(top, 60) == top
    eventually(store.all_matched)


def test_closing_waits_for_somebody_who_indexes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: rests(store))
    indexing = Indexing(store, monkeypatch)
    indexing.go_on.clear()
    write(store, *transactions(1))
    eventually(lambda: store._writer._waiting)
    waiting = threading.Thread(target=lambda: store.barrier(BASE + 1000, 1))
    waiting.start()
    assert indexing.begun.wait(60)
    closing = threading.Thread(target=store.close)
    closing.start()
    eventually(lambda: store._indexer._stop)
    assert closing.is_alive()
    indexing.go_on.set()
    closing.join(60)
    waiting.join(60)
    assert not closing.is_alive()


def test_a_mark_is_behind_all_that_was_acknowledged_whoever_indexes(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "pump", OPTIONS)
    lock, acknowledged = threading.Lock(), set[int]()
    clock = iter(range(BASE, BASE + 1_000_000))
    failures: list[str] = []

    def ts() -> int:
        with lock:
            return next(clock)

    def write_some(number: int) -> None:
        dice = random.Random(number)
        for _ in range(80):
            start, answer = ts(), Answer()
            store.submit([prewrite(start)], answer, here=dice.random() < 0.5)
            assert answer.done.wait(60)
            end, answer = ts(), Answer()
            store.submit([commit(start, end)], answer, here=dice.random() < 0.5)
            assert answer.done.wait(60)
            with lock:
                acknowledged.add(end)

    def look() -> None:
        lo = BASE - 1
        while any(writer.is_alive() for writer in writers):
            with lock:
                known = set(acknowledged)
            through = ts()
            if store.barrier(through, 60) < through:
                failures.append("it wasn't reached")
            found = {row[0] for row in window(store, lo, through)}
            if missing := {each for each in known if each > lo} - found:
                failures.append(f"{missing} are missing")

    writers = [threading.Thread(target=write_some, args=(number,)) for number in range(3)]
    lookers = [threading.Thread(target=look) for _ in range(2)]
    for thread in (*writers, *lookers):
        thread.start()
    for thread in (*writers, *lookers):
        thread.join(120)
    assert not failures and len(acknowledged) == 240
    assert store.stats().late_commits == 0
    store.close()

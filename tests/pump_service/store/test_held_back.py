"""Commits that nobody waits for share the next Prewrite's sync.

Whoever wants one has it written at once.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.pump_service.store import Record, Store, StoreFailedError, failpoints, writer
from sluice.pump_service.store.value_log import ValueLog
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    Answer,
    commit,
    eventually,
    prewrite,
    pulled,
    rollback,
    window,
    write,
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(writer, "_PROMPT_S", 60.0)  # however busy the machine is
    opened = Store.open(tmp_path / "pump", OPTIONS)
    eventually(lambda: opened._writer._waiting)
    yield opened
    failpoints.configure("")
    opened.close()


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each sync was for."""
    found: list[int] = []
    append = ValueLog.append

    def noted(log: ValueLog, payloads: list[bytes], timestamps: list[int]) -> object:
        found.append(len(payloads))
        return append(log, payloads, timestamps)

    monkeypatch.setattr(ValueLog, "append", noted)
    return found


def held(store: Store, *records: Record) -> Answer:
    """Submits records that may wait, and sees that they do."""
    eventually(lambda: store._writer._waiting)
    answer = Answer()
    store.submit(records, answer, here=True, later=True)
    assert not answer.calls and store._writer._held
    return answer


def test_a_commit_is_answered_with_the_next_prewrite_by_one_sync(
    store: Store, groups: list[int]
) -> None:
    write(store, prewrite(BASE))
    first = held(store, commit(BASE, BASE + 10))
    second = held(store, rollback(BASE + 1))
    next_one = Answer()
    store.submit([prewrite(BASE + 20)], next_one, here=True)
    assert [first.calls, second.calls, next_one.calls] == [1, 1, 1]
    assert (first.error, second.error, next_one.error) == (None, None, None)
    assert groups == [1, 3]
    assert store.stats().queued_bytes == 0


@pytest.mark.parametrize("here", [True, False])
def test_who_asks_for_a_window_has_what_was_held_back(store: Store, *, here: bool) -> None:
    write(store, prewrite(BASE))
    answer = held(store, commit(BASE, BASE + 10))
    if not here:
        store._writer._distrusted_until = float("inf")
    assert store.barrier(BASE + 20, 60) == BASE + 20
    assert answer.done.wait(60) and answer.error is None
    assert [row[:2] for row in window(store, 0, BASE + 20)] == [(BASE + 10, BASE)]


@pytest.mark.parametrize("how", ["await", "pull", "fence", "flush"])
def test_who_waits_has_it_written(store: Store, how: str) -> None:
    write(store, prewrite(BASE))
    answer = held(store, commit(BASE, BASE + 10))
    assert not store.all_matched()
    if how == "await":
        assert store.await_newer(BASE + 1, 60)
    elif how == "pull":
        assert [row[:2] for row in pulled(store, BASE + 10)] == [(BASE + 10, BASE)]
    elif how == "fence":
        assert store.decided_through(BASE + 20) == BASE + 20
    else:
        store.flush()
    assert answer.done.wait(60) and answer.error is None


def test_while_somebody_waits_nothing_is_held_back(store: Store) -> None:
    write(store, prewrite(BASE))
    seen: list[bool] = []
    waiting = threading.Thread(target=lambda: seen.append(store.await_newer(BASE + 1, 60)))
    waiting.start()
    eventually(lambda: store._sorter.is_awaited)
    answer = Answer()
    store.submit([commit(BASE, BASE + 10)], answer, here=True, later=True)
    waiting.join(60)
    assert seen == [True] and answer.done.wait(60)


def test_who_begins_to_wait_while_a_commit_is_being_held_back_has_it_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, prewrite(BASE))
    eventually(lambda: store._writer._waiting)
    flushing, seen = threading.Event(), list[bool]()
    waiting = threading.Thread(target=lambda: seen.append(store.await_newer(BASE + 1, 60)))
    may_hold, on_wait = store._writer._may_hold, store._sorter.on_wait

    def wait() -> None:
        flushing.set()
        on_wait()

    def nobody_waits_yet(size: int) -> bool:
        found = may_hold(size)
        waiting.start()
        assert flushing.wait(60)
        waiting.join(0.2)  # it is as far as it gets while this thread has the lock
        return found

    monkeypatch.setattr(store._sorter, "on_wait", wait)
    monkeypatch.setattr(store._writer, "_may_hold", nobody_waits_yet)
    answer = Answer()
    store.submit([commit(BASE, BASE + 10)], answer, here=True, later=True)
    assert answer.done.wait(10) and answer.error is None
    waiting.join(60)
    assert seen == [True]


@pytest.mark.parametrize("why", ["slow", "distrusted", "large"])
def test_it_is_not_held_back_where_somebody_who_wants_it_would_wait(store: Store, why: str) -> None:
    write(store, prewrite(BASE))
    eventually(lambda: store._writer._waiting)
    key = b"key"
    if why == "slow":
        store._writer._took = 61.0
    elif why == "distrusted":
        store._writer._took, store._writer._distrusted_until = 61.0, float("inf")
    else:
        key = b"k" * (writer._MAX_HELD_BYTES + 1)
    answer = Answer()
    store.submit([commit(BASE, BASE + 10, key)], answer, here=True, later=True)
    assert answer.done.wait(60) and answer.error is None


def test_closing_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_PROMPT_S", 60.0)
    store = Store.open(tmp_path / "pump", OPTIONS)
    write(store, prewrite(BASE))
    answer = held(store, commit(BASE, BASE + 10))
    store.close()
    assert answer.calls == 1 and answer.error is None
    again = Store.open(tmp_path / "pump", OPTIONS)
    assert again.barrier(BASE + 20, 60) == BASE + 20
    assert [row[:2] for row in window(again, 0, BASE + 20)] == [(BASE + 10, BASE)]
    again.close()


def test_nobody_is_told_that_it_is_safe_when_the_sync_that_it_waited_for_fails(
    store: Store,
) -> None:
    write(store, prewrite(BASE))
    first = held(store, commit(BASE, BASE + 10))
    failpoints.configure("vlog.fsync=error")
    second = Answer()
    store.submit([prewrite(BASE + 20)], second, here=True)
    assert isinstance(first.error, StoreFailedError) and isinstance(second.error, StoreFailedError)
    assert (first.calls, second.calls) == (1, 1)


def test_a_writer_that_fails_elsewhere_answers_what_is_held_back(store: Store) -> None:
    write(store, prewrite(BASE))
    first = held(store, commit(BASE, BASE + 10))
    failpoints.configure("vlog.fsync=error")
    second = Answer()
    store.submit([prewrite(BASE + 20)], second)
    assert first.done.wait(60) and second.done.wait(60)
    assert isinstance(first.error, StoreFailedError) and (first.calls, second.calls) == (1, 1)


def test_in_whatever_order_they_come_each_is_answered_once_and_there(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "pump", dataclasses.replace(OPTIONS, segment_limit=20_000))
    lock, clock = threading.Lock(), iter(range(BASE, BASE + 1_000_000))
    answers: list[tuple[int, Answer]] = []
    failures: list[str] = []

    def ts() -> int:
        with lock:
            return next(clock)

    def write_some(number: int) -> None:
        dice = random.Random(number)
        for _ in range(80):
            start, answer = ts(), Answer()
            store.submit([prewrite(start)], answer, here=dice.random() < 0.7)
            assert answer.done.wait(60)
            end, answer = ts(), Answer()
            store.submit(
                [commit(start, end)], answer, here=dice.random() < 0.7, later=dice.random() < 0.8
            )
            with lock:
                answers.append((end, answer))

    def look(number: int) -> None:
        dice = random.Random(number)
        while any(each.is_alive() for each in writers):
            with lock:
                known = {end for end, answer in answers if answer.calls}
            through = ts()
            if store.barrier(through, 60) < through:
                failures.append("it wasn't reached")
            if missing := known - {row[0] for row in window(store, 0, through)}:
                failures.append(f"{missing} are missing")
            if dice.random() < 0.2:
                store.flush()

    writers = [threading.Thread(target=write_some, args=(number,)) for number in range(3)]
    lookers = [threading.Thread(target=look, args=(number,)) for number in range(2)]
    for thread in (*writers, *lookers):
        thread.start()
    for thread in (*writers, *lookers):
        thread.join(120)
    store.flush()
    eventually(lambda: all(answer.calls for _, answer in answers))
    assert not failures and [answer.calls for _, answer in answers] == [1] * 240
    top = ts()
    assert store.barrier(top, 60) == top
    assert {row[0] for row in window(store, 0, top)} == {end for end, _ in answers}
    assert store.stats().late_commits == 0 and store.stats().queued_bytes == 0
    store.close()

"""Who writes: the writer's thread, or a caller who is alone in his own."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.pump_service.store import Store, StoreFailedError, writer
from sluice.pump_service.store.value_log import ValueLog
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    Answer,
    commit,
    eventually,
    prewrite,
    settle,
    start_write,
    window,
    write,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "data", dataclasses.replace(OPTIONS, segment_limit=20_000))
    eventually(lambda: opened._writer._waiting)
    yield opened
    opened.close()


class Held:
    """A disk whose next write doesn't come back until it is let go, or fails then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.error: OSError | None = None
        self.threads: list[str] = []
        append = ValueLog.append

        def held(log: ValueLog, *args: object) -> object:
            self.threads.append(threading.current_thread().name)
            self.begun.set()
            assert self.go_on.wait(60)
            if self.error is not None:
                raise self.error
            return append(log, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(ValueLog, "append", held)


def test_a_caller_who_is_alone_has_the_answer_from_within_his_call(store: Store) -> None:
    answer = Answer()
    store.submit([prewrite(BASE)], answer, here=True)
    assert answer.calls == 1 and answer.error is None


def test_what_comes_meanwhile_is_written_behind_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Held(monkeypatch)
    first = Answer()
    alone = threading.Thread(
        target=store.submit,
        args=([prewrite(BASE), commit(BASE, BASE + 10)], first),
        kwargs={"here": True},
        name="alone",
    )
    alone.start()
    assert disk.begun.wait(60)
    second = Answer()
    store.submit([prewrite(BASE + 1), commit(BASE + 1, BASE + 11)], second, here=True)
    assert not second.calls, "two threads write at once"
    passed = threading.Event()
    store._writer.fence(passed)
    disk.go_on.set()
    alone.join(60)
    assert passed.wait(60) and first.error is None and second.error is None
    assert disk.threads == ["alone", "pump-writer"]
    settle(store, BASE + 20)
    assert [row[:2] for row in window(store, 0, BASE + 20)] == [
        (BASE + 10, BASE),
        (BASE + 11, BASE + 1),
    ]


def test_closing_waits_for_a_caller_who_writes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Held(monkeypatch)
    answer = Answer()
    alone = threading.Thread(
        target=store.submit, args=([prewrite(BASE)], answer), kwargs={"here": True}
    )
    alone.start()
    assert disk.begun.wait(60)
    closing = threading.Thread(target=store.close)
    closing.start()
    eventually(lambda: store._writer._closing)
    assert closing.is_alive()
    disk.go_on.set()
    closing.join(60)
    alone.join(60)
    assert answer.error is None and not closing.is_alive()


def test_a_caller_whose_sync_failed_leaves_a_store_that_takes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Held(monkeypatch)
    disk.error = OSError(5, "Input/output error")
    first = Answer()
    alone = threading.Thread(
        target=store.submit, args=([prewrite(BASE)], first), kwargs={"here": True}
    )
    alone.start()
    assert disk.begun.wait(60)
    waiting = start_write(store, prewrite(BASE + 1))
    disk.go_on.set()
    alone.join(60)
    assert waiting.done.wait(60)
    assert isinstance(first.error, StoreFailedError) and isinstance(waiting.error, StoreFailedError)
    for here in (True, False):
        later = Answer()
        store.submit([prewrite(BASE + 2)], later, here=here)
        assert isinstance(later.error, StoreFailedError)
    assert len(disk.threads) == 1


def test_a_disk_that_was_slow_is_left_to_the_writers_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, prewrite(BASE))
    store._writer._distrusted_until = float("inf")
    disk = Held(monkeypatch)
    disk.go_on.set()
    answer = Answer()
    store.submit([prewrite(BASE + 1)], answer, here=True)
    assert answer.done.wait(60) and disk.threads == ["pump-writer"]


def test_a_disk_that_is_slow_for_the_writers_thread_is_left_to_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_QUICK_S", -1.0)
    write(store, prewrite(BASE))
    disk = Held(monkeypatch)
    disk.go_on.set()
    answer = Answer()
    store.submit([prewrite(BASE + 1)], answer, here=True)
    assert answer.done.wait(60) and disk.threads == ["pump-writer"]


def test_callers_who_write_themselves_and_others_lose_nothing_in_any_order(store: Store) -> None:
    callers, each = 4, 60

    def call(number: int) -> None:
        dice = random.Random(number)
        for i in range(each):
            start = BASE + (number * each + i) * 10
            answer = Answer()
            store.submit(
                [prewrite(start), commit(start, start + 5)], answer, here=dice.random() < 0.5
            )
            assert answer.done.wait(60) and answer.error is None

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    top = BASE + callers * each * 10
    settle(store, top)
    assert len(window(store, 0, top)) == callers * each
    assert store.stats().records == 2 * callers * each

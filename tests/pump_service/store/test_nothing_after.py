"""A store that is at rest knows by itself that nothing was committed after a timestamp, and says so
of no other.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sluice.pump_service.store import Store, indexer, writer
from sluice.pump_service.store.sorter import Sorter
from sluice.pump_service.store.unreadable_ranges import UnreadableRange
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    Answer,
    commit,
    eventually,
    fake,
    prewrite,
    rollback,
    start_write,
    write,
)

_TOP = BASE + 10_000


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Its indexer does nothing by itself for as long as a test may take."""
    monkeypatch.setattr(indexer, "_MAX_LINGER_S", 600.0)
    monkeypatch.setattr(writer, "_PROMPT_S", 60.0)
    opened = Store.open(tmp_path / "pump", dataclasses.replace(OPTIONS, save_interval_s=600.0))
    eventually(lambda: opened._indexer._is_resting and opened._writer._waiting)
    yield opened
    opened.close()


def test_nothing_lies_behind_the_newest_commit_once_all_is_matched(store: Store) -> None:
    assert store.has_nothing_after(0)
    write(
        store,
        prewrite(BASE),
        commit(BASE, BASE + 10),
        prewrite(BASE + 1),
        rollback(BASE + 1),
        fake(BASE + 50),
    )
    assert store.barrier(_TOP, 60) == _TOP
    eventually(store.all_matched)
    assert store.has_nothing_after(BASE + 10)
    assert not store.has_nothing_after(BASE + 9)
    assert store.max_commit_ts == _TOP, "to ask moves nothing"


def test_it_is_not_said_while_a_prewrite_waits_for_its_verdict(store: Store) -> None:
    write(store, prewrite(BASE))
    assert not store.has_nothing_after(_TOP), "not even indexed"
    store.barrier(_TOP, 0)
    eventually(lambda: store._indexer.idle)
    assert not store.has_nothing_after(_TOP)
    write(store, rollback(BASE))
    store.barrier(_TOP, 60)
    eventually(lambda: store.has_nothing_after(_TOP))


def test_it_is_not_said_while_a_commit_is_on_its_way(store: Store) -> None:
    write(store, prewrite(BASE))
    store.barrier(BASE + 1, 0)
    eventually(lambda: store._indexer.idle and store._writer._waiting)
    answer = Answer()
    store.submit([commit(BASE, BASE + 10)], answer, later=True)
    assert store._writer._held and not answer.calls
    assert not store.has_nothing_after(_TOP), "held back"
    store.flush()
    assert answer.done.wait(60)
    assert not store.has_nothing_after(_TOP), "not indexed yet"
    assert store.barrier(_TOP, 60) == _TOP
    eventually(lambda: store.has_nothing_after(BASE + 10))
    assert not store.has_nothing_after(BASE)


def test_it_is_not_said_of_what_was_purged_or_could_not_be_read_nor_by_a_store_that_is_closed(
    store: Store,
) -> None:
    write(store, prewrite(BASE), commit(BASE, BASE + 10))
    assert store.barrier(_TOP, 60) == _TOP
    eventually(lambda: store.has_nothing_after(_TOP))
    assert store.gc(BASE + 100) == BASE + 100
    assert not store.has_nothing_after(BASE + 99)
    assert store.has_nothing_after(BASE + 100)
    store._indexer.gaps = [UnreadableRange(0, 10, 20, BASE, BASE + 1)]
    assert not store.has_nothing_after(_TOP)
    store._indexer.gaps = []
    store.close()
    assert not store.has_nothing_after(_TOP)


def test_a_store_that_was_opened_again_knows_of_what_was_committed_before(tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, save_interval_s=600.0)
    store = Store.open(tmp_path / "pump", options)
    write(store, prewrite(BASE), commit(BASE, BASE + 10), prewrite(BASE + 20))
    store.barrier(BASE + 30, 0)
    write(store, prewrite(BASE + 31), commit(BASE + 31, BASE + 40))
    store.close()
    store = Store.open(tmp_path / "pump", options)
    assert not store.has_nothing_after(_TOP)
    start_write(store, rollback(BASE + 20))
    assert store.barrier(_TOP, 60) == _TOP
    eventually(lambda: store.has_nothing_after(BASE + 40))
    assert not store.has_nothing_after(BASE + 39)
    store.close()


def test_no_commit_is_passed_over_by_a_reader_who_is_told_so_while_others_write(
    tmp_path: Path,
) -> None:
    store = Store.open(tmp_path / "pump", OPTIONS)
    lock, committed = threading.Lock(), set[int]()
    clock = iter(range(BASE, BASE + 100_000_000))
    passed: list[tuple[int, int]] = []

    def ts() -> int:
        with lock:
            return next(clock)

    def rest() -> None:
        before = len(passed)
        eventually(lambda: len(passed) > before + 5)

    meeting = threading.Barrier(2, action=rest)

    def write_some(number: int) -> None:
        dice = random.Random(number)
        for turn in range(60):
            if turn % 3 == 0:
                meeting.wait(60)
            start, answer = ts(), Answer()
            store.submit([prewrite(start)], answer, here=dice.random() < 0.5)
            assert answer.done.wait(60)
            end, answer = ts(), Answer()
            committed.add(end)
            later = dice.random() < 0.3
            store.submit([commit(start, end)], answer, here=dice.random() < 0.5, later=later)
            if later and dice.random() < 0.5:
                store.flush()

    def look() -> None:
        lo, dice = BASE - 1, random.Random(7)
        while any(writer.is_alive() for writer in writers):
            through = ts()
            if store.has_nothing_after(lo):
                passed.append((lo, through))
            elif (
                dice.random() < 0.7
                and (found := store.settled_window(lo, through, BASE, 10**6, 10**6)) is not None
            ):
                rows = [] if found.rows is None else found.rows["commit_ts"].to_pylist()
                passed.extend(
                    (max(lo, before), ts - 1) for before, ts in pairwise([lo, *rows, through + 1])
                )
            elif store.barrier(through, 60) < through:
                continue
            lo = through
            if dice.random() < 0.1:
                lo -= 20  # again

    writers = [threading.Thread(target=write_some, args=(number,)) for number in range(2)]
    lookers = [threading.Thread(target=look) for _ in range(2)]
    for thread in (*writers, *lookers):
        thread.start()
    for thread in (*writers, *lookers):
        thread.join(120)
    assert len(committed) == 120 and passed
    assert not [(lo, ts, hi) for lo, hi in passed for ts in committed if lo < ts <= hi]
    store.close()


def test_a_commit_below_what_a_reader_has_without_a_mark_is_late(store: Store) -> None:
    write(store, prewrite(BASE), commit(BASE, BASE + 10))
    store.barrier(BASE + 10, 60)
    store.mark_read_through(BASE + 20)
    store.mark_read_through(BASE + 15)
    write(
        store,
        prewrite(BASE + 11),
        commit(BASE + 11, BASE + 20),
        prewrite(BASE + 12),
        commit(BASE + 12, BASE + 21),
    )
    store.barrier(_TOP, 60)
    eventually(store.all_matched)
    assert store.stats().late_commits == 1


def test_a_commit_that_is_being_sorted_is_not_passed_over_at_any_step(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may have seen writer and indexer at rest just before the Commit came, and look on at
    each step of it.
    """
    commit_ts = BASE + 10
    write(store, prewrite(BASE))
    store.barrier(BASE + 1, 0)
    eventually(lambda: store._indexer.idle and store._writer._waiting)
    monkeypatch.setattr(indexer.Indexer, "idle", True)
    monkeypatch.setattr(writer.Writer, "idle", True)
    missed: list[str] = []
    steps = 0

    def look(step: str) -> None:
        nonlocal steps
        steps += 1
        # else it waits for the end of push
        if not store._sorter._lock.locked() and store.has_nothing_after(BASE):
            missed.append(f"nothing after, {step}")
        if store.all_matched():
            found = store.small_window(BASE, _TOP, 1000, 1 << 20)
            if found is not None and found.bounds.transactions == 0:
                missed.append(f"settled window, {step}")

    push, watched = store._sorter.push, (Sorter.push.__code__, Sorter._unlink.__code__)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code not in watched:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            look(f"{frame.f_code.co_name} line {frame.f_lineno}")
        return trace

    def step_by_step(*records: Any, **options: Any) -> None:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            push(*records, **options)
        finally:
            sys.settrace(before)

    monkeypatch.setattr(store._sorter, "push", step_by_step)
    write(store, commit(BASE, commit_ts))
    assert store.barrier(_TOP, 60) == _TOP
    assert steps > 100
    assert not missed, missed[:5]

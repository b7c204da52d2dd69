"""The sorter against the plain queue that it stands for."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.pump_service.store.segment import RecordPointer
from sluice.pump_service.store.sorter import LONG_TRANSACTION, Sorter, SorterBatch
from tests.examples import examples

P, C, R = 0, 1, 2


def push(sorter: Sorter, *records: tuple[int, int, int], at: int = 0, replay: bool = False) -> None:
    tps, starts, commits = zip(*records, strict=True)
    sorter.push(SorterBatch(0, tps, starts, commits, range(at, at + len(records))), replay=replay)


class Queue:
    """A FIFO whose head Prewrite waits until a verdict has come behind it.

    (The original asks whether the transaction has a verdict at the moment, so that a Prewrite that
    comes twice, once after its Commit, opens its first place again.)
    """

    def __init__(self) -> None:
        self.items: list[tuple[int, int, int, int]] = []
        self.waiting: set[int] = set()
        """places of Prewrites without verdict"""
        self.max_commit_ts, self.handled = 0, 0

    def push(self, tp: int, start: int, commit: int, place: int) -> None:
        self.items.append((tp, start, commit, place))
        if tp == P:
            self.waiting.add(place)
        elif start != commit:
            self.waiting -= {
                where for kind, begun, _, where in self.items if kind == P and begun == start
            }
        while self.items:
            tp, start, commit, place = self.items[0]
            if place in self.waiting:
                return
            self.items.pop(0)
            if tp != P and commit > self.max_commit_ts:
                self.max_commit_ts, self.handled = commit, place

    @property
    def open_transactions(self) -> int:
        return len({start for _, start, _, place in self.items if place in self.waiting})


_RECORDS = st.lists(
    st.one_of(
        st.tuples(st.just(P), st.integers(1, 12), st.just(0)),
        st.tuples(st.just(C), st.integers(1, 12), st.integers(13, 60)),
        st.tuples(st.just(R), st.integers(1, 12), st.just(0)),
        st.integers(13, 60).map(lambda ts: (R, ts, ts)),
    ),
    max_size=60,
)


@settings(max_examples=examples(400), deadline=None)
@given(_RECORDS, st.integers(1, 10))
def test_publishes_what_the_plain_queue_publishes(
    records: list[tuple[int, int, int]], size: int
) -> None:
    sorter, queue = Sorter(0, RecordPointer(0, 0)), Queue()
    for first in range(0, len(records), size):
        push(sorter, *records[first : first + size], at=first)
        for i, record in enumerate(records[first : first + size]):
            queue.push(*record, first + i)
        assert sorter.max_commit_ts == queue.max_commit_ts
        assert sorter.handled() == (RecordPointer(0, queue.handled), queue.max_commit_ts)
        assert sorter.open_count == queue.open_transactions


@settings(max_examples=examples(400), deadline=None)
@given(_RECORDS, st.integers(1, 20), st.integers(0, 20))
def test_records_pushed_as_arrays_leave_the_same_queue(
    records: list[tuple[int, int, int]], size: int, singly: int
) -> None:
    one, other = Sorter(0, RecordPointer(0, 0)), Sorter(0, RecordPointer(0, 0))
    if singly and records[:singly]:
        push(one, *records[:singly], replay=True)
        push(other, *records[:singly], replay=True)
    for first in range(singly, len(records), size):
        part = records[first : first + size]
        push(one, *part, at=first, replay=True)
        columns = (np.array(column, np.int64) for column in zip(*part, strict=True))
        other.push_arrays(0, *columns, np.arange(first, first + len(part)))
        assert other.max_commit_ts == one.max_commit_ts
        assert other.handled() == one.handled()
        assert other.open_count == one.open_count
        assert other.oldest_open() == one.oldest_open()
        assert other.transactions == one.transactions
    verdicts = [(R, start, 0) for start in range(1, 13)]
    for verdict in verdicts:  # what lies behind each open Prewrite is the same too
        push(one, verdict)
        push(other, verdict)
        assert other.handled() == one.handled()


def test_long_transactions_are_kept_from_arrays_too() -> None:
    sorter = Sorter(0, RecordPointer(0, 0))
    late = 5 + LONG_TRANSACTION + 1
    sorter.push_arrays(
        0,
        np.array([P, P, C, C]),
        np.array([5, 6, 6, 5]),
        np.array([0, 0, 7, late]),
        np.array([0, 10, 20, 30]),
    )
    assert sorter.long_transactions() == {late: 5}
    assert sorter.handled() == (RecordPointer(0, 30), late)


def test_a_commit_waits_for_every_prewrite_in_front_of_it() -> None:
    sorter = Sorter(0, RecordPointer(0, 0))
    push(sorter, (P, 10, 0), (P, 11, 0), (C, 11, 20))
    assert sorter.max_commit_ts == 0
    push(sorter, (C, 10, 15))
    assert sorter.max_commit_ts == 20


def test_a_rollback_frees_the_queue() -> None:
    sorter = Sorter(0, RecordPointer(0, 0))
    push(sorter, (P, 10, 0), (P, 11, 0), (C, 11, 20), (R, 10, 0))
    assert sorter.max_commit_ts == 20
    assert sorter.open_count == 0


def test_the_chain_does_not_grow_while_the_head_waits() -> None:
    sorter = Sorter(0, RecordPointer(0, 0))
    push(sorter, (P, 1, 0))
    for i in range(0, 3000, 3):
        push(sorter, (P, 10 + i, 0), (C, 10 + i, 11 + i), (R, 12 + i, 12 + i))
    assert sorter.max_commit_ts == 0
    assert sorter.open_count == 1
    push(sorter, (C, 1, 9))
    assert sorter.max_commit_ts == 12 + 2997


def test_a_mark_waits_like_a_commit_and_then_counts() -> None:
    sorter = Sorter(5, RecordPointer(0, 0))
    push(sorter, (P, 10, 0))
    sorter.mark(50)
    push(sorter, (P, 60, 0))
    sorter.mark(70)
    assert sorter.max_commit_ts == 5
    push(sorter, (C, 10, 40))
    assert sorter.max_commit_ts == 50
    push(sorter, (R, 60, 0))
    assert sorter.max_commit_ts == 70
    # A mark has no record, so it isn't what a restart goes on from.
    assert sorter.handled() == (RecordPointer(0, 0), 40)


def test_waiting_ends_when_the_mark_passes_and_at_the_time_out() -> None:
    sorter = Sorter(0, RecordPointer(0, 0))
    push(sorter, (P, 10, 0))
    sorter.mark(50)
    began = time.monotonic()
    assert sorter.wait_for(50, 0.05) == 0
    assert time.monotonic() - began > 0.04
    threading.Timer(0.05, push, (sorter, (C, 10, 20))).start()
    assert sorter.wait_for(50, 200) == 50
    assert time.monotonic() - began < 100


def test_who_awaits_a_transaction_is_told_of_commits_alone() -> None:
    sorter = Sorter(5, RecordPointer(0, 0))
    assert sorter.await_newer(4, 0)
    push(sorter, (P, 10, 0), (C, 12, 12), (R, 11, 0))
    sorter.mark(50)
    assert not sorter.await_newer(5, 0.01)
    threading.Timer(0.05, push, (sorter, (C, 10, 20))).start()
    assert sorter.await_newer(5, 200)
    assert not sorter.await_newer(20, 0)


def test_only_prewrites_that_waited_are_asked_about_and_not_at_every_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(
        "sluice.pump_service.store.sorter.time", SimpleNamespace(monotonic=lambda: clock.now)
    )
    sorter = Sorter(0, RecordPointer(0, 0))
    push(sorter, (P, 10, 0), (P, 11, 0), (P, 12, 0), (C, 11, 20))
    assert sorter.unresolved(0.05, 0.05, 10) == ([], pytest.approx(0.05))
    clock.now += 0.06
    push(sorter, (P, 13, 0))
    assert sorter.unresolved(0.05, 0.05, 10) == ([10, 12], pytest.approx(0.05))
    clock.now += 0.03
    assert sorter.unresolved(0.05, 0.05, 10) == ([], pytest.approx(0.02))
    clock.now += 0.03
    assert sorter.unresolved(0.05, 0.05, 2) == ([10, 12], 0)
    assert (sorter.oldest_open(), sorter.smallest_open()) == (10, 10)


def test_with_more_waiting_than_one_look_sees_the_next_look_is_due_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(
        "sluice.pump_service.store.sorter.time", SimpleNamespace(monotonic=lambda: clock.now)
    )
    sorter = Sorter(0, RecordPointer(0, 0))
    push(sorter, (P, 10, 0), (P, 11, 0), (P, 12, 0))
    clock.now += 1
    assert sorter.unresolved(1.0, 1.0, 2) == ([10, 11], 0)
    push(sorter, (C, 10, 20), (C, 11, 21))
    assert sorter.unresolved(1.0, 1.0, 2) == ([12], pytest.approx(1.0))


def test_a_commit_that_comes_too_late_is_counted_but_a_replay_is_not() -> None:
    sorter = Sorter(100, RecordPointer(0, 0))
    push(sorter, (P, 10, 0), (C, 10, 50), replay=True)
    assert sorter.late_commits == 0
    push(sorter, (P, 20, 0), (C, 20, 60))
    assert sorter.late_commits == 1
    push(sorter, (C, 20, 60))  # the same again: a retry of TiDB's
    assert sorter.late_commits == 1
    assert sorter.max_commit_ts == 100


def test_a_transaction_that_is_twice_in_one_batch_is_late_once_or_not_at_all() -> None:
    sorter = Sorter(100, RecordPointer(0, 0))
    push(sorter, (P, 110, 0), (C, 110, 120), (P, 110, 0), (C, 110, 120))
    assert sorter.late_commits == 0
    push(sorter, (P, 20, 0), (C, 20, 60), (P, 20, 0), (C, 20, 60), (P, 30, 0), (C, 30, 60))
    assert sorter.late_commits == 2, "two transactions, and one of them came again"

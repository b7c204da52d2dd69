"""What a pump does differently where little happens: windows read at one go, records indexed
together, marks that take the shorter way.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.pump_service.store import Record, Store, indexer
from sluice.pump_service.store.segment import HEADER
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    Answer,
    commit,
    eventually,
    fake,
    prewrite,
    recorded,
    rollback,
    settle,
    transactions,
    window,
    write,
)

_ALL = 1 << 40


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with_patience = Store.open(
        tmp_path / "pump", dataclasses.replace(OPTIONS, save_interval_s=600.0)
    )
    yield with_patience
    with_patience.close()


@pytest.mark.quick_cases("types", "ddl")
@pytest.mark.parametrize("name", ["types", "ddl", "shop"])
def test_small_windows_of_a_recording_are_what_bounds_and_the_bulk_read_say(
    name: str, store: Store
) -> None:
    records = list(recorded(name))[:6000]
    for first in range(0, len(records), 50):
        store.submit(records[first : first + 50], lambda error: None)
    open_ones = {r.start_ts for r in records if r.tp == 0} - {r.start_ts for r in records if r.tp}
    write(store, *(rollback(ts) for ts in open_ones))
    settle(store)
    timestamps = sorted({r.commit_ts for r in records if r.tp} - {0})
    given = 0
    for lo, hi in itertools.pairwise([timestamps[0] - 1, *timestamps[::7]]):
        small = store.small_window(lo, hi, _ALL, _ALL)
        if small is None:
            continue
        given += 1
        assert small.bounds == store.bounds(lo, hi, _ALL, _ALL)
        rows = [] if small.rows is None else [tuple(row.values()) for row in small.rows.to_pylist()]
        assert rows == window(store, lo, hi)
    assert given > len(timestamps) // 7 * 0.8


def test_a_prewrite_before_the_window_fakes_and_rollbacks_in_it(store: Store) -> None:
    early = prewrite(BASE + 1, b"early")
    write(
        store,
        early,
        prewrite(BASE + 5),
        fake(BASE + 6),
        rollback(BASE + 5),
        commit(BASE + 1, BASE + 8),
    )
    settle(store)
    small = store.small_window(BASE + 4, BASE + 9, _ALL, _ALL)
    assert small is not None and small.rows is not None
    assert small.rows.to_pylist() == [
        {"commit_ts": BASE + 8, "start_ts": BASE + 1, "payload": early.payload}
    ]
    nothing = store.small_window(BASE + 4, BASE + 7, _ALL, _ALL)
    assert nothing is not None
    assert (nothing.bounds.transactions, nothing.rows) == (0, None)
    assert nothing.bounds == store.bounds(BASE + 4, BASE + 7, _ALL, _ALL)


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([commit(BASE + 1, BASE + 3)], "no Prewrite"),
        (transactions(200), "many"),
        ([prewrite(BASE + 1, bytes(300 << 10)), commit(BASE + 1, BASE + 3)], "large"),
        ([Record(0, 7, 0, prewrite(7).payload), commit(7, BASE + 3)], "a timestamp of one byte"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_as_it_mostly_is_is_left_to_the_bulk_read(
    store: Store, records: list[Record], why: str
) -> None:
    write(store, *records)
    settle(store)
    assert store.small_window(0, store.max_commit_ts, _ALL, _ALL) is None, why


def test_a_window_beyond_a_limit_is_no_small_one(store: Store) -> None:
    write(store, *transactions(3))
    settle(store)
    lo, hi = BASE - 1, store.max_commit_ts
    whole = store.bounds(lo, hi, _ALL, _ALL)
    assert store.small_window(lo, hi, 3, whole.bytes) is not None
    assert store.small_window(lo, hi, 2, whole.bytes) is None
    assert store.small_window(lo, hi, 3, whole.bytes - 1) is None


@pytest.mark.parametrize("which", ["prewrite", "commit"])
def test_a_damaged_record_is_never_handed_out_in_a_small_window(store: Store, which: str) -> None:
    records = transactions(3)
    write(store, *records)
    settle(store)
    (path,) = (store.data_dir / "value").glob("*.vlog")
    at = (
        sum(HEADER.size + len(r.payload) for r in records[: 1 if which == "prewrite" else 2])
        + HEADER.size
        + 5
    )
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    assert store.small_window(BASE - 1, store.max_commit_ts, _ALL, _ALL) is None


def test_a_mark_does_not_overtake_what_was_acknowledged_a_moment_before(store: Store) -> None:
    acknowledged, go_on = threading.Event(), threading.Event()

    def done(error: BaseException | None) -> None:
        acknowledged.set()
        assert go_on.wait(60)

    write(store, *transactions(1))
    settle(store, BASE + 300)
    caller = threading.Thread(target=lambda: store.submit([prewrite(BASE + 400)], done, here=True))
    caller.start()
    assert acknowledged.wait(60)  # and the indexer hasn't been handed it yet
    assert store.barrier(BASE + 500, 0.2) < BASE + 400
    go_on.set()
    caller.join()
    assert store.barrier(BASE + 500, 0.2) < BASE + 400
    write(store, commit(BASE + 400, BASE + 450))
    assert store.barrier(BASE + 500, 60) >= BASE + 500


@pytest.fixture
def lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that nobody waits for are indexed after longer than a test may take."""
    monkeypatch.setattr(indexer, "_MAX_LINGER_S", 600.0)


def test_records_that_nobody_waits_for_are_indexed_together(
    lingering: None, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    put = store._index.put_batch

    def counted(*columns: object) -> None:
        batches.append(len(columns[1]))  # type: ignore[arg-type]
        put(*columns)  # type: ignore[arg-type]

    monkeypatch.setattr(store._index, "put_batch", counted)
    few = transactions(indexer._MAX_LINGERING_RECORDS // 2 - 1)
    for record in few:
        write(store, record)
    assert batches == []
    settle(store)
    assert batches == [len(few)]
    for record in transactions(indexer._MAX_LINGERING_RECORDS, first=len(few)):
        write(store, record)
    # so many don't wait
    eventually(lambda: sum(batches) >= len(few) + indexer._MAX_LINGERING_RECORDS)


@pytest.mark.parametrize("how", ["await", "pull", "fence"])
def test_who_waits_for_a_record_has_it_at_once(lingering: None, store: Store, how: str) -> None:
    write(store, *transactions(1))
    settle(store)
    top = store.max_commit_ts
    begun = prewrite(top + 10)
    write(store, begun)
    seen: list[bool] = []
    waits = {
        "await": lambda: store.await_newer(top, 60),
        "pull": lambda: next(store.pull(top, threading.Event())).commit_ts == top + 20,
        "fence": lambda: store.decided_through(top + 20) == top + 20,
    }
    waiting = threading.Thread(target=lambda: seen.append(waits[how]()))
    if how != "fence":
        waiting.start()
    answer = Answer()
    store.submit([commit(begun.start_ts, top + 20)], answer)
    assert answer.done.wait(60)
    if how == "fence":
        waiting.start()
    waiting.join(60)
    assert seen == [True]

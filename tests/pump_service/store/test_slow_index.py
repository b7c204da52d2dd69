"""LevelDB stalls under load: writers don't notice, order and memory are kept, nothing is lost or
doubled.
"""

from __future__ import annotations

import dataclasses
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.pump_service.store import Record, Store
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    commit,
    eventually,
    fake,
    paired,
    prewrite,
    settle,
    stalled_index,
    transactions,
    window,
    write,
)

_CAPACITY = 400


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(
        tmp_path, dataclasses.replace(OPTIONS, kv_chan_cap=_CAPACITY, segment_limit=100_000)
    )
    yield opened
    opened.close()


def test_writers_and_a_live_reader_across_many_stalls(store: Store) -> None:
    seen: list[int] = []
    stop = threading.Event()

    def read() -> None:
        seen.extend(entity.commit_ts for entity in store.pull(0, stop))

    reader = threading.Thread(target=read)
    reader.start()
    write(store, *transactions(1))
    settle(store, BASE + 160)
    records: list[Record] = transactions(1)
    queued = 0
    first = 1
    for turn in range(1, 5):
        eventually(lambda: not store.stats().catching_up)
        # that a write is answered means that it doesn't wait for the index
        with stalled_index(store):
            for _ in range(2 * _CAPACITY // 40):
                part = transactions(20, first)
                first += 20
                write(store, *part)
                records += part
                queued = max(queued, store.stats().queued_for_index)
            assert store.stats().slow_index_count == turn
    assert queued <= _CAPACITY + 40  # one submission more at most
    top = records[-1].commit_ts + 1
    assert settle(store, top) >= top
    assert window(store) == paired(records)
    end = fake(top + 1)
    write(store, end)
    eventually(lambda: bool(seen) and seen[-1] == end.commit_ts)
    stop.set()
    reader.join(60)
    assert seen == [row[0] for row in paired(records)] + [end.commit_ts]
    assert store.stats().late_commits == 0
    assert not store.stats().catching_up


def test_what_waits_for_a_stalled_index_takes_no_memory(store: Store) -> None:
    write(store, *transactions(1))
    settle(store, BASE + 160)
    part = [prewrite(BASE + 1000, bytes(100_000)), commit(BASE + 1000, BASE + 1050)]
    with stalled_index(store):
        for _ in range(30):
            write(store, *part)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(200):  # 20 MB of payload; and records beyond what the queue holds
                write(store, *part)
            for number in range(3000):
                write(store, fake(BASE + 2000 + number)) if number % 500 in (
                    0,
                    499,
                ) else store.submit([fake(BASE + 2000 + number)], lambda error: None)
            eventually(lambda: store.stats().catching_up)
            assert tracemalloc.get_traced_memory()[0] - before < 1 << 20
        finally:
            tracemalloc.stop()

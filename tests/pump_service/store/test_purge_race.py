"""Garbage collection that overtakes a reader is an error for the reader, never a window with a
hole.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.pump_service.store import Store, WindowPurgedError
from tests.pump_service.storekit import BASE, OPTIONS, commit, eventually, prewrite, settle, write

MINUTE = 60_000 << 18
LO = BASE + 2


def _filled(folder: Path) -> Store:
    store = Store.open(folder, dataclasses.replace(OPTIONS, segment_limit=200))
    for i in range(60):
        write(
            store,
            prewrite(BASE + i * MINUTE, b"x" * 100),
            commit(BASE + i * MINUTE, BASE + i * MINUTE + 1),
        )
    settle(store, BASE + 60 * MINUTE)
    return store


READS: list[Callable[[Store], Any]] = [
    lambda store: store.bounds(LO, BASE + 20 * MINUTE, 1000, 1 << 30),
    lambda store: list(store.read_window(LO, BASE + 20 * MINUTE, strict=True)),
    lambda store: [next(iter(store.pull(LO, threading.Event()))) for _ in range(1)],
]


@pytest.mark.parametrize("read", READS, ids=["bounds", "read", "pull"])
def test_a_reader_that_is_overtaken_while_it_reads_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Store], Any]
) -> None:
    store = _filled(tmp_path)
    purged = []

    def overtaking(name: str) -> None:
        original = getattr(store._reader, name)

        def call(*args: Any, **more: Any) -> Any:
            if not purged:  # after the look at what is purged, before anything is read
                purged.append(store.gc(BASE + 50 * MINUTE))
            return original(*args, **more)

        monkeypatch.setattr(store._reader, name, call)

    for name in [
        n
        for n in dir(type(store._reader))
        if not n.startswith("_") and callable(getattr(store._reader, n))
    ]:
        overtaking(name) if name != "clear_cache" else None
    with pytest.raises(WindowPurgedError):
        read(store)
    assert purged == [BASE + 50 * MINUTE]
    store.close()


def test_a_prewrite_that_is_acknowledged_while_garbage_is_collected_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start_ts may be as old as what is purged: a transaction may take as long as it likes."""
    store = _filled(tmp_path)
    old = BASE + 5
    save = store._index.save_gc_ts

    def meanwhile(ts: int) -> None:
        write(store, prewrite(old, b"late"))
        eventually(lambda: store._index.get(old) is not None)
        save(ts)

    monkeypatch.setattr(store._index, "save_gc_ts", meanwhile)
    assert store.gc(BASE + 50 * MINUTE) == BASE + 50 * MINUTE
    late = BASE + 200 * MINUTE
    write(store, commit(old, late))
    settle(store, late + 1)
    rows = [
        row for batch in store.read_window(late - 1, late, strict=True) for row in batch.to_pylist()
    ]
    assert [(row["start_ts"], row["payload"]) for row in rows] == [
        (old, prewrite(old, b"late").payload)
    ]
    store.close()

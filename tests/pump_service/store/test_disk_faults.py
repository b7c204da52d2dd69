"""A disk that is full, read-only or broken: nothing acknowledged is lost, and what can go on goes
on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.pump_service.store import (
    IndexOptions,
    NoSpaceError,
    Record,
    Store,
    StoreFailedError,
    StoreOptions,
    failpoints,
)
from sluice.pump_service.store.index import BinlogIndex
from sluice.pump_service.store.leveldb import CheckedDB
from sluice.pump_service.store.segment import RecordPointer
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    commit,
    copy_live,
    eventually,
    paired,
    prewrite,
    pulled,
    settle,
    start_write,
    transactions,
    window,
    write,
)

SMALL = dataclasses.replace(OPTIONS, segment_limit=200_000, kv=IndexOptions(write_buffer=1 << 20))


@pytest.fixture(autouse=True)
def no_failpoints() -> Iterator[None]:
    yield
    failpoints.configure("")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A file system of its own, of so many bytes, in memory."""
    mounted = []

    def mount(size: int, *options: str) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        words = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            ",".join([f"size={size}", *options]),
            "tmpfs",
            str(path),
        ]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("file systems can't be mounted here")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def _until_refused(store: Store, first: int) -> tuple[list[Record], str]:
    """Writes transactions until one is refused; those that were acknowledged, and the refusal."""
    taken: list[Record] = []
    for i in range(first, first + 100_000):
        start = BASE + i * 100
        pair = [prewrite(start, os.urandom(20_000)), commit(start, start + 50)]
        try:
            write(store, *pair)
        except NoSpaceError as refused:
            return taken, str(refused)
        taken += pair
    raise AssertionError("the disk never got full")


def test_a_full_disk_refuses_writes_and_takes_them_again_once_there_is_room(
    disk: Callable[..., Path],
) -> None:
    data_dir = disk(12 << 20)
    ballast = data_dir / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    store = Store.open(data_dir / "pump", SMALL)
    before, refusal = _until_refused(store, 0)
    assert refusal.startswith("no available space, available: ")
    assert refusal.endswith("StopWriteAtAvailableSpace: 0")
    assert before
    with pytest.raises(NoSpaceError):
        write(store, prewrite(BASE + 100 * 50_000, bytes(4 << 20)))
    assert not store.stats().failed
    last = before[-1].commit_ts
    rows = paired(before)
    ballast.unlink()
    after = transactions(5, 60_000)
    write(store, *after)
    settle(store, after[-1].commit_ts + 1)  # the index has got what it missed too
    assert window(store, 0, last) == rows
    assert window(store) == rows + paired(after)
    assert store.stats().corrupt_records == 0
    store.close()
    shutil.rmtree(data_dir / "pump" / "kv")
    again = Store.open(data_dir / "pump", SMALL)
    assert window(again) == rows + paired(after)
    assert again.stats().skipped_bytes == 0  # what did not fit was taken back
    again.close()


def test_a_full_disk_of_which_not_even_the_figures_can_be_read_is_a_full_disk_like_any_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("sluice.pump_service.store.writer.os.statvfs", gone)
    failpoints.configure("vlog.write=nospace@1")
    with pytest.raises(NoSpaceError):
        write(store, *transactions(1), timeout=60)
    write(store, *transactions(3), timeout=60)
    settle(store)
    assert window(store) == paired(transactions(3))


@pytest.mark.parametrize(
    "where", ["vlog.torn=nospace@3", "vlog.write=nospace@3", "rotate.before_footer=sleep:0@1"]
)
def test_what_was_half_written_to_a_full_disk_is_taken_back(where: str, tmp_path: Path) -> None:
    store = Store.open(tmp_path, dataclasses.replace(OPTIONS, segment_limit=600))
    failpoints.configure(where)
    taken: list[Record] = []
    refused = 0
    for i in range(12):
        pair = transactions(1, i)
        try:
            write(store, *pair)
            taken += pair
        except NoSpaceError:
            refused += 1
    assert refused == ("nospace" in where)
    settle(store)
    assert window(store) == paired(taken)
    store.close()
    shutil.rmtree(tmp_path / "kv")
    again = Store.open(tmp_path, OPTIONS)
    assert window(again) == paired(taken)
    assert again.stats().skipped_bytes == 0
    again.close()


def test_a_failing_fsync_is_never_repeated_and_leaves_no_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path, OPTIONS)
    # enough for a footer at a clean end
    kept = [prewrite(BASE, b"v" * 60_000), commit(BASE, BASE + 1)]
    write(store, *kept)
    settle(store, BASE + 2)
    calls: list[str] = []

    def broken(fd: int) -> None:
        calls.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("sluice.pump_service.store.segment.os.fdatasync", broken)
    with pytest.raises(StoreFailedError):
        write(store, *transactions(1, 10))
    answers = [start_write(store, *transactions(1, 20 + i)) for i in range(20)]
    assert all(
        answer.done.wait(60) and isinstance(answer.error, StoreFailedError) for answer in answers
    )
    assert calls == ["000000.vlog"]
    stats = store.stats()
    assert (stats.failed, stats.writable) == (True, False)
    assert window(store, 0, BASE + 2) == paired(kept)
    assert [row[0] for row in pulled(store, BASE + 1)] == [BASE + 1]
    store.close()
    assert calls == ["000000.vlog"]
    monkeypatch.undo()
    again = Store.open(tmp_path, OPTIONS)
    assert not again.stats().failed
    write(again, *transactions(1, 30))
    settle(again)
    assert set(paired([*kept, *transactions(1, 30)])) <= set(window(again))
    again.close()


def test_a_last_segment_that_cannot_be_sealed_costs_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path, OPTIONS)
    records = [prewrite(BASE, b"v" * 60_000), commit(BASE, BASE + 1)]
    write(store, *records)
    settle(store, BASE + 2)
    failpoints.configure("vlog.write=error")
    store.close()
    failpoints.configure("")
    again = Store.open(tmp_path, OPTIONS)  # the directory was let go of
    assert window(again) == paired(records)
    again.close()


def test_a_read_only_disk_is_refused_by_name_and_left_as_it_was(disk: Callable[..., Path]) -> None:
    path = disk(4 << 20)
    Store.open(path / "pump", SMALL).close()
    subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
    before = sorted(p.relative_to(path).as_posix() for p in path.rglob("*"))
    with pytest.raises(OSError, match=r"Read-only file system: '.*/pump/\.lock'"):
        Store.open(path / "pump", SMALL)
    with pytest.raises(OSError, match="Read-only file system"):
        Store.open(path / "new", SMALL)
    assert sorted(p.relative_to(path).as_posix() for p in path.rglob("*")) == before


# -- the index's part of it


def test_a_full_disk_tears_no_hole_into_the_index(disk: Callable[..., Path]) -> None:
    """LevelDB's journal then ends in the middle of a record.

    Had anything been written behind it, LevelDB would skip it at the next start without a word.
    """
    path = disk(6 << 20)
    (path / "ballast").write_bytes(bytes(3 << 20))
    options = IndexOptions(write_buffer=1 << 20)
    index = BinlogIndex(path / "kv", options)
    done = 0

    def put(first: int, count: int) -> None:
        numbers = list(range(first, first + count))
        index.put_batch(0, [1] * count, numbers, numbers, numbers)

    with pytest.raises(OSError, match="No space left"):
        while True:
            put(done + 1, 997)
            done += 997
    with pytest.raises(OSError, match="must be opened again"):
        put(done + 1, 1)
    with pytest.raises(OSError, match="waiting for free space"):
        while True:  # LevelDB may find room by compacting
            index.reopen()
            with contextlib.suppress(OSError):
                while True:
                    put(done + 1, 997)
                    done += 997
    assert index.get(1) == RecordPointer(0, 1)  # it can still be read
    (path / "ballast").unlink()
    index.reopen()
    begin = index.head_pointer().offset
    assert begin == done or begin == done + 997  # LevelDB may have kept the one that failed
    while begin < done + 30 * 997:
        put(begin + 1, 997)
        begin += 997
    # As after kill -9: a copy of the files as they are now.
    copy_live(path / "kv", path.parent / "copy")
    copy = BinlogIndex(path.parent / "copy", options)
    keys, _, _ = copy.range(0, 1 << 62, 1 << 30)
    assert keys.tolist() == list(range(1, begin + 1))
    assert copy.head_pointer() == RecordPointer(0, begin)
    copy.close()
    index.close()


def test_an_index_that_fails_in_the_middle_of_reading_keeps_readers_waiting_not_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sluice.pump_service.store.indexer._RETRY_INTERVAL_S", 0.02)
    caplog.set_level(logging.CRITICAL)  # one line each for what is meant to fail
    store = Store.open(tmp_path, dataclasses.replace(OPTIONS, kv_chan_cap=500))
    opened = store._index._open
    fails = iter([True, True, False] * 100)

    def open_again() -> CheckedDB:
        if next(fails):
            raise OSError("no")
        return opened()

    monkeypatch.setattr(store._index, "_open", open_again)
    records = transactions(2000)
    failpoints.configure(
        "index.before_batch=error@3,index.after_batch=error@5,index.before_handled=error@2"
    )
    for first in range(0, len(records), 40):
        write(store, *records[first : first + 40])
        window(store)
    top = records[-1].commit_ts
    assert settle(store, top) >= top
    assert window(store) == paired(records)
    assert [row[0] for row in pulled(store, top)] == [row[0] for row in paired(records)]
    assert store.stats().index_errors >= 3
    store.close()


def test_an_unexpected_error_does_not_end_indexing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.pump_service.store.indexer._RETRY_INTERVAL_S", 0.02)
    push = store._sorter.push
    bad = iter([False, True])

    def sometimes(*columns: object, **more: object) -> None:
        if next(bad, False):
            raise RuntimeError("a bug")
        push(*columns, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(store._sorter, "push", sometimes)
    for i in range(10):
        write(store, *transactions(20, i * 20))
        eventually(lambda: store._indexer.idle)
    settle(store)
    assert window(store) == paired(transactions(200))
    assert store.stats().index_errors == 1
    eventually(store.all_matched)


def test_a_barrier_does_not_wait_in_vain_for_an_index_that_failed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.pump_service.store.indexer._RETRY_INTERVAL_S", 0.02)
    put = store._index.put_batch
    waiting = threading.Event()

    def fails_once_a_mark_is_behind(*columns: object) -> None:
        if not waiting.is_set():
            waiting.set()
            eventually(lambda: any(isinstance(item, int) for item in store._indexer._queue))
            return put(*columns)  # type: ignore[arg-type]
        monkeypatch.setattr(store._index, "put_batch", put)
        raise OSError("no")

    monkeypatch.setattr(store._index, "put_batch", fails_once_a_mark_is_behind)
    write(store, *transactions(5))
    assert waiting.wait(60)
    write(store, *transactions(5, 5))  # taken together with the mark, and then it fails
    assert settle(store, BASE + 5000, timeout=60) == BASE + 5000
    assert store.stats().index_errors == 1
    assert window(store) == paired(transactions(10))


def test_garbage_collection_on_an_index_that_cannot_be_written_is_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.pump_service.store.indexer._RETRY_INTERVAL_S", 0.02)
    records = [*transactions(10)]
    far = BASE + (3_600_000 << 18)
    write(store, *records, prewrite(far), commit(far, far + 1))
    settle(store, far + 2)
    index = store._index
    with index._use() as db:
        monkeypatch.setattr(index, "_db", _NoSpace(db))
    with pytest.raises(OSError, match="No space left"):
        store.gc(far - (1_200_000 << 18))
    monkeypatch.setattr(index, "_db", db)
    write(store, prewrite(far + 5), commit(far + 5, far + 6))  # the index is opened again for it
    settle(store, far + 7)
    assert store.gc_ts == 0
    assert store.gc(far - (1_200_000 << 18)) == far - (1_200_000 << 18)
    assert [row[0] for row in window(store, store.gc_ts)] == [far + 1, far + 6]


class _NoSpace:
    """A database that takes no batch."""

    def __init__(self, db: CheckedDB) -> None:
        self._db = db

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)

    def batch(self, **options: object) -> _NoSpace:
        return self

    def put(self, key: bytes, value: bytes) -> None:
        pass

    def write(self) -> None:
        raise OSError("No space left on device")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.open(tmp_path, OPTIONS)
    yield made
    made.close()


def test_options_stop_writing_at_ten_gib() -> None:
    assert StoreOptions().stop_write_at_available_space == 10 << 30

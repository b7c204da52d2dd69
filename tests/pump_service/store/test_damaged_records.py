"""Damage in the value log: no reader is given a window or a stream that lacks a committed
transaction.
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.pump_service.store import CorruptRecordError, Store
from sluice.pump_service.store.errors import IndexDamagedError
from sluice.pump_service.store.index import encode_key
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    commit,
    eventually,
    fake,
    paired,
    prewrite,
    pulled,
    rollback,
    settle,
    transactions,
    window,
    write,
)

DOOMED = BASE + 100 * 5
DOOMED_COMMIT = DOOMED + 150
PLACES: dict[str, int] = {"prewrite": DOOMED, "commit": DOOMED_COMMIT}


def damage(path: Path, at: int) -> Callable[[], None]:
    """Flips a bit; what is returned flips it back."""

    def flip() -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 4
        path.write_bytes(data)

    flip()
    return flip


def strictly(store: Store) -> list[int]:
    return [
        ts
        for batch in store.read_window(0, store.max_commit_ts, strict=True)
        for ts in batch.column(0).to_pylist()
    ]


def streamed(store: Store) -> list[int]:
    """What a Drainer is sent until its stream ends with an error, which must come."""
    seen: list[int] = []
    with pytest.raises(CorruptRecordError, match="restore the file"):
        seen.extend(entity.commit_ts for entity in store.pull(0, threading.Event()))
    return seen


@pytest.mark.parametrize("where", [2, 30])  # in its header, in its payload
@pytest.mark.parametrize("which", ["prewrite", "commit"])
def test_a_reader_is_never_given_a_hole_and_goes_on_once_the_file_is_restored(
    tmp_path: Path, which: str, where: int
) -> None:
    store = Store.open(tmp_path, OPTIONS)
    records = transactions(20)
    write(store, *records)
    settle(store)
    expected = [row[0] for row in paired(records)]
    place = store._index.get(PLACES[which])
    assert place is not None
    restore = damage(tmp_path / "value" / "000000.vlog", place.offset + where)
    for _ in range(2):  # it is said every time, not once
        with pytest.raises(
            CorruptRecordError, match=f"000000.vlog: offset {place.offset}.*restore the file"
        ):
            strictly(store)
    unreadable_at = DOOMED if (which, where) == ("prewrite", 2) else DOOMED_COMMIT
    assert streamed(store) == [ts for ts in expected if ts < unreadable_at]
    restore()
    assert strictly(store) == expected
    store.close()


@pytest.mark.parametrize("when", ["indexed before", "indexed after"])
@pytest.mark.parametrize("where", [2, 30])
@pytest.mark.parametrize("which", ["prewrite", "commit"])
def test_what_an_operator_gives_up_is_left_out_and_nothing_else(
    tmp_path: Path, which: str, where: int, when: str
) -> None:
    store = Store.open(tmp_path, OPTIONS)
    records = transactions(20)
    write(store, *records)
    settle(store)
    place = store._index.get(PLACES[which])
    assert place is not None
    store.close()
    damage(tmp_path / "value" / "000000.vlog", place.offset + where)
    if when == "indexed after":
        shutil.rmtree(tmp_path / "kv")
    again = Store.open(tmp_path, OPTIONS)
    resolved = (which, when) == ("commit", "indexed after")
    if resolved:
        # as the resolver would: then nothing is lost, but nobody knows
        write(again, commit(DOOMED, DOOMED_COMMIT))
        settle(again, BASE + 90_000)
    with pytest.raises(CorruptRecordError, match="touch ") as told:
        strictly(again)
    Path(str(told.value).rpartition("touch ")[2].rstrip("`")).touch()
    expected = [row[0] for row in paired(records) if resolved or row[0] != DOOMED_COMMIT]
    assert strictly(again) == expected
    assert [row[0] for row in pulled(again, expected[-1])] == expected
    again.close()


def test_a_copy_that_is_moved_into_the_place_of_a_damaged_file_is_read(tmp_path: Path) -> None:
    store = Store.open(tmp_path, dataclasses.replace(OPTIONS, segment_limit=400))
    records = transactions(20)
    for record in records:
        write(store, record)
    settle(store)
    place = store._index.get(DOOMED)
    assert place is not None
    path = tmp_path / "value" / f"{place.fid:06d}.vlog"
    copy = shutil.copy(path, tmp_path / "copy")
    damage(path, place.offset + 30)
    with pytest.raises(CorruptRecordError):
        strictly(store)
    Path(copy).rename(path)
    with pytest.raises(CorruptRecordError):
        strictly(store)  # sees that there is another file
    assert strictly(store) == [row[0] for row in paired(records)]
    store.close()


def test_a_prewrite_in_front_of_the_window_that_can_t_be_read_is_no_prewrite_that_never_came(
    tmp_path: Path,
) -> None:
    store = Store.open(tmp_path, OPTIONS)
    write(store, prewrite(BASE + 1), *transactions(20, 10), commit(BASE + 1, BASE + 90_000))
    settle(store)
    place = store._index.get(BASE + 1)
    assert place is not None
    damage(tmp_path / "value" / "000000.vlog", place.offset + 2)
    with pytest.raises(CorruptRecordError, match=f"offset {place.offset}"):
        list(store.read_window(BASE + 80_000, store.max_commit_ts, strict=True))
    store.close()


@pytest.mark.parametrize("limit", [OPTIONS.segment_limit, 400])
def test_a_prewrite_that_was_damaged_before_it_was_indexed_is_missed_not_left_out(
    tmp_path: Path, limit: int
) -> None:
    options = dataclasses.replace(OPTIONS, segment_limit=limit)
    store = Store.open(tmp_path, options)
    records = transactions(20)
    for record in records:
        write(store, record)
    write(store, commit(BASE + 7, BASE + 90_000))  # a Commit of a transaction that nobody ever sent
    settle(store)
    place = store._index.get(DOOMED)
    assert place is not None
    store.close()
    damage(tmp_path / "value" / f"{place.fid:06d}.vlog", place.offset + 30)
    shutil.rmtree(tmp_path / "kv")
    again = Store.open(tmp_path, options)
    for _ in range(2):
        with pytest.raises(
            CorruptRecordError, match=f"{place.fid:06d}.vlog: offset {place.offset}"
        ):
            strictly(again)
    seen = streamed(again)
    assert seen == [row[0] for row in paired(records) if row[0] <= max(seen)]
    assert DOOMED - 100 < max(seen) < DOOMED_COMMIT
    again.close()


def test_in_a_clean_log_a_commit_without_prewrite_is_no_lost_transaction(tmp_path: Path) -> None:
    store = Store.open(tmp_path, OPTIONS)
    write(store, *transactions(5), commit(BASE + 7, BASE + 333), *transactions(5, 10))
    settle(store)
    expected = [row[0] for row in paired(transactions(5) + transactions(5, 10))]
    assert strictly(store) == strictly(store) == expected
    assert store.stats().missing_prewrites >= 1
    store.close()


def test_an_entry_that_the_index_lost_is_found_and_the_index_made_again(tmp_path: Path) -> None:
    store = Store.open(tmp_path, OPTIONS)
    records = [*transactions(20), fake(BASE + 99_000)]
    write(store, *records)
    settle(store)
    with store._index._use() as db:
        batch = db.batch()
        batch.delete(encode_key(DOOMED))
        batch.write()
    with pytest.raises(IndexDamagedError, match="made again"):
        strictly(store)
    eventually(lambda: store._index.is_complete)
    assert strictly(store) == [row[0] for row in paired(records)]
    assert window(store) == paired(records)
    store.close()


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_last_record_that_was_indexed_is_no_torn_write(tmp_path: Path, index: str) -> None:
    options = dataclasses.replace(OPTIONS, segment_limit=1 << 20)
    store = Store.open(tmp_path, options)
    records = transactions(20)
    write(store, *records)
    settle(store)
    store.close()
    path = tmp_path / "value" / "000000.vlog"
    size = path.stat().st_size
    damage(path, size - 10)
    if index == "lost":
        shutil.rmtree(tmp_path / "kv")
    again = Store.open(tmp_path, options)
    assert (path.stat().st_size == size) == (index == "kept")
    if index == "kept":
        with pytest.raises(CorruptRecordError):
            strictly(again)
    again.close()


@pytest.mark.parametrize("limit", [OPTIONS.segment_limit, 500])
def test_a_transaction_that_was_unreadable_as_a_whole_when_it_was_indexed_is_missed(
    tmp_path: Path, limit: int
) -> None:
    """Neither its Prewrite nor its Commit leaves a trace in the index."""
    options = dataclasses.replace(OPTIONS, segment_limit=limit)
    store = Store.open(tmp_path, options)
    records = [
        record
        for i in range(20)
        for record in (prewrite(BASE + 100 * i), commit(BASE + 100 * i, BASE + 100 * i + 50))
    ]
    for record in records:
        write(store, record)
    settle(store)
    doomed = BASE + 100 * 7
    places = [store._index.get(doomed), store._index.get(doomed + 50)]
    store.close()
    restore = []
    for place in places:
        assert place is not None
        restore.append(damage(tmp_path / "value" / f"{place.fid:06d}.vlog", place.offset + 30))
    shutil.rmtree(tmp_path / "kv")
    expected = [row[0] for row in paired(records)]
    for _ in range(2):  # also after a start that reads nothing again
        again = Store.open(tmp_path, options)
        with pytest.raises(CorruptRecordError, match="restore the file"):
            strictly(again)
        assert streamed(again) == [ts for ts in expected if ts < doomed]
        assert [ts for ts, *_ in window(again, doomed + 250)] == [
            ts for ts in expected if ts > doomed + 250
        ]
        # what lies behind it is not held up
        list(again.read_window(doomed + 250, again.max_commit_ts, strict=True))
        again.close()
    for heal in restore:
        heal()
    healed = Store.open(tmp_path, options)
    with pytest.raises(IndexDamagedError, match="restored"):
        strictly(healed)
    eventually(lambda: healed._index.is_complete)
    assert strictly(healed) == expected
    healed.close()


@pytest.mark.parametrize("when", ["indexed before", "indexed after"])
@pytest.mark.parametrize("where", [2, 30])
@pytest.mark.parametrize("which", ["prewrite", "commit", "both"])
def test_a_window_of_which_nothing_can_be_read_is_not_passed_over(
    tmp_path: Path, which: str, where: int, when: str
) -> None:
    """Landing reads a range only if its bounds count something there, and windows are often of one
    transaction.
    """
    store = Store.open(tmp_path, OPTIONS)
    records = [
        record
        for i in range(20)
        for record in (prewrite(BASE + 100 * i), commit(BASE + 100 * i, BASE + 100 * i + 50))
    ]
    write(store, *records)
    settle(store)
    lo, hi = DOOMED - 1, DOOMED + 50
    places = [store._index.get(ts) for ts in (DOOMED, DOOMED + 50)]
    store.close()
    for place in {"prewrite": places[:1], "commit": places[1:], "both": places}[which]:
        assert place is not None
        damage(tmp_path / "value" / "000000.vlog", place.offset + where)
    if when == "indexed after":
        shutil.rmtree(tmp_path / "kv")
    again = Store.open(tmp_path, OPTIONS)
    if (which, when) == ("commit", "indexed after"):
        # it is a Prewrite without verdict now, which holds everything up
        write(again, rollback(DOOMED))
    settle(again)
    assert again.small_window(lo, hi, 1000, 1 << 20) is None
    for limits in ((1000, 1 << 20), (1, 1)):
        bounds = again.bounds(lo, hi, *limits)
        assert (bounds.hi, bounds.transactions > 0) == (hi, True)
    with pytest.raises(CorruptRecordError):
        list(again.read_window(lo, hi, strict=True))
    empty = again.bounds(DOOMED + 250, DOOMED + 270, 1000, 1 << 20)
    assert (empty.hi, empty.transactions) == (DOOMED + 270, 0)
    again.close()

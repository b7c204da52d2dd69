"""A captured store: transactions share commit timestamps, and start where others commit."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.pump_service.store import Record, Store, WindowPurgedError
from sluice.pump_service.store.data_format import FORMAT_FILE
from sluice.pump_service.store.errors import (
    CapturedStoreError,
    InvalidRecordError,
    MixedDataError,
    NewerDataError,
)
from sluice.pump_service.store.window_reader import WindowReader
from sluice.tidb import pb
from tests.examples import examples
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    commit,
    eventually,
    fake,
    prewrite,
    pulled,
    window,
    write,
)

CAPTURED = dataclasses.replace(OPTIONS, is_captured=True)
_ALL = 1 << 40

Transaction = tuple[int, int]
"""commit_ts and start_ts, both behind BASE."""


@st.composite
def transactions(draw: st.DrawFn) -> list[Transaction]:
    """Start timestamps are unique, as PD gives them.

    Commit timestamps are few, and may be another's start.
    """
    starts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=25, unique=True))
    return sorted((start + draw(st.integers(1, 4)), start) for start in starts)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "pump", CAPTURED)
    yield opened
    opened.close()


def _write(store: Store, found: list[Transaction]) -> list[tuple[int, int, bytes]]:
    """Write them as a capture does, and return the right answer."""
    rows = []
    for commit_ts, start in found:
        record = whole(BASE + start, BASE + commit_ts)
        write(store, record)
        rows.append((record.commit_ts, record.start_ts, record.payload))
    _publish(store, BASE + 100)
    return rows


def _publish(store: Store, ts: int) -> None:
    """Say that everything through a timestamp is there."""
    write(store, fake(ts))
    assert store._sorter.wait_for(ts, 60) == ts


def whole(start: int, commit_ts: int) -> Record:
    """A transaction as a capture writes it: a Prewrite that has its commit_ts."""
    message = pb.binlog.Binlog(
        tp=0, start_ts=start, commit_ts=commit_ts, prewrite_key=b"key",
        prewrite_value=b"%d" % start, ddl_job_id=0, ddl_schema_state=0,
    )  # fmt: skip
    return Record(0, start, commit_ts, message.SerializeToString())


@settings(deadline=None, max_examples=examples(60))
@given(found=transactions(), chunk=st.integers(1, 9), most=st.integers(1, 6), again=st.booleans())
def test_windows_have_every_transaction_once_by_commit_and_start_and_end_between_timestamps(
    found: list[Transaction], chunk: int, most: int, again: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "pump", CAPTURED)
        try:
            rows = _write(store, found)
            if again:  # as after a restart, from before the last frontier on
                _write(store, found[len(found) // 2 :])
            defaults, WindowReader.transactions.__defaults__ = (
                WindowReader.transactions.__defaults__,
                (chunk,),
            )
            try:
                assert window(store, BASE, BASE + 100) == rows
                lo, read = BASE, []
                while lo < BASE + 100:
                    reach = store.bounds(lo, BASE + 100, most, _ALL)
                    part = window(store, lo, reach.hi)
                    assert len(part) == reach.transactions
                    # A window has more than it may only if one timestamp has.
                    assert len(part) <= most or len({commit_ts for commit_ts, _, _ in part}) == 1
                    read, lo = read + part, reach.hi
                assert read == rows
            finally:
                WindowReader.transactions.__defaults__ = defaults
            small = store.small_window(BASE, BASE + 100, _ALL, _ALL)
            assert small is not None and small.rows is not None
            assert [tuple(row.values()) for row in small.rows.to_pylist()] == rows
        finally:
            store.close()


@settings(deadline=None, max_examples=examples(20))
@given(found=transactions())
def test_a_store_that_is_opened_again_has_the_same(found: list[Transaction]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "pump", CAPTURED)
        rows = _write(store, found)
        store.close()
        store = Store.open(Path(folder) / "pump", OPTIONS)  # the directory says what it is
        try:
            assert store.is_captured
            assert store.max_commit_ts == BASE + 100
            assert window(store, BASE, BASE + 100) == rows
            assert all(store.holds(start, commit_ts) for commit_ts, start, _ in rows)
        finally:
            store.close()


def test_an_index_that_is_lost_is_rebuilt_with_every_transaction(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "pump", CAPTURED)
    rows = _write(store, [(5, 1), (5, 2), (5, 3), (6, 5)])
    store.close()
    shutil.rmtree(tmp_path / "pump" / "kv")
    store = Store.open(tmp_path / "pump", CAPTURED)
    try:
        eventually(lambda: store.max_commit_ts == BASE + 100)
        assert window(store, BASE, BASE + 100) == rows
    finally:
        store.close()


@pytest.mark.parametrize("is_index_lost", [False, True])
def test_what_was_committed_before_a_capture_began_is_never_passed_over(
    tmp_path: Path, is_index_lost: bool
) -> None:
    store = Store.open(tmp_path / "pump", CAPTURED)
    store.begin_at(BASE + 3)
    write(store, fake(BASE + 3))
    rows = _write(store, [(5, 1), (6, 5)])
    store.close()
    if is_index_lost:
        shutil.rmtree(tmp_path / "pump" / "kv")
    store = Store.open(tmp_path / "pump", CAPTURED)
    try:
        eventually(lambda: store.max_commit_ts == BASE + 100)
        with pytest.raises(WindowPurgedError, match=str(BASE + 3)):
            window(store, BASE + 2, BASE + 100)
        assert window(store, BASE + 3, BASE + 100) == rows
    finally:
        store.close()


def test_a_start_that_is_another_transactions_commit_hides_neither(store: Store) -> None:
    rows = _write(store, [(5, 3), (9, 5)])
    assert window(store, BASE, BASE + 100) == rows


def test_nothing_is_readable_before_the_capture_says_that_it_is_complete(
    store: Store, tmp_path: Path
) -> None:
    rows = _write(store, [(5, 1)])
    write(store, whole(BASE + 110, BASE + 120), whole(BASE + 111, BASE + 120))
    assert store.barrier(BASE + 130, 0.05) == BASE + 100
    store.close()
    again = Store.open(tmp_path / "pump", CAPTURED)
    try:
        assert again.max_commit_ts == BASE + 100
        write(again, whole(BASE + 110, BASE + 120), whole(BASE + 111, BASE + 120))
        _publish(again, BASE + 130)
        assert [row[:2] for row in window(again, BASE, BASE + 130)] == [
            rows[0][:2], (BASE + 120, BASE + 110), (BASE + 120, BASE + 111),
        ]  # fmt: skip
    finally:
        again.close()


def test_what_is_no_whole_transaction_is_refused_and_nobody_pulls(store: Store) -> None:
    for record in (prewrite(BASE + 1), commit(BASE + 1, BASE + 2)):
        with pytest.raises(InvalidRecordError):
            write(store, record)
    with pytest.raises(CapturedStoreError):
        pulled(store, BASE)


def test_garbage_collection_takes_what_shares_a_timestamp_together(store: Store) -> None:
    rows = _write(store, [(5, 1), (5, 2), (7, 6)])
    assert store.gc(BASE + 5) == BASE + 5
    assert window(store, BASE + 5, BASE + 100) == rows[2:]


def test_a_directory_of_binlogs_takes_no_capture_and_an_older_pump_takes_no_captured_one(
    tmp_path: Path,
) -> None:
    Store.open(tmp_path / "binlogs", OPTIONS).close()
    binlogs = Store.open(tmp_path / "binlogs", OPTIONS)
    write(binlogs, prewrite(BASE + 1))
    binlogs.close()
    with pytest.raises(MixedDataError, match="binlogs"):
        Store.open(tmp_path / "binlogs", CAPTURED)
    Store.open(tmp_path / "captured", CAPTURED).close()
    assert (tmp_path / "captured" / FORMAT_FILE).read_text() == "2\n"
    (tmp_path / "captured" / FORMAT_FILE).write_text("3\n")
    with pytest.raises(NewerDataError):
        Store.open(tmp_path / "captured", CAPTURED)

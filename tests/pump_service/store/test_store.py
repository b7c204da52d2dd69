"""The store as a whole: what goes in comes out, in commit order, also after damage and restarts."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import plyvel
import pytest

from sluice.pump_service.store import (
    InvalidRecordError,
    NoSpaceError,
    Record,
    Store,
    StoreClosedError,
    StoreFailedError,
    StoreLockedError,
    WindowPurgedError,
    WindowReach,
    failpoints,
)
from sluice.pump_service.store.collector import LATE_COMMIT_SLACK
from sluice.pump_service.store.segment import Segment
from sluice.tidb import pb
from sluice.tidb.window_schema import WINDOW_SCHEMA
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    commit,
    eventually,
    fake,
    paired,
    prewrite,
    pulled,
    recorded,
    restore,
    rollback,
    settle,
    stalled_index,
    start_write,
    transactions,
    vlog_records,
    window,
    write,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "data", OPTIONS)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    yield
    failpoints.configure("")


# -- in and out


def test_a_window_is_the_prewrites_of_committed_transactions_in_commit_order(store: Store) -> None:
    records = [
        prewrite(BASE + 1, b"a"),
        prewrite(BASE + 2, b"b"),
        prewrite(BASE + 3, b"c"),
        commit(BASE + 2, BASE + 10),
        rollback(BASE + 3),
        fake(BASE + 12),
        commit(BASE + 1, BASE + 11),
    ]
    write(store, *records)
    settle(store)
    assert window(store) == [
        (BASE + 10, BASE + 2, records[1].payload),
        (BASE + 11, BASE + 1, records[0].payload),
    ]
    assert next(store.read_window(0, BASE + 11)).schema.equals(WINDOW_SCHEMA)
    assert window(store, BASE + 10, BASE + 11) == [(BASE + 11, BASE + 1, records[0].payload)]
    assert window(store, BASE + 11, BASE + 20) == []
    assert window(store, 0, BASE + 10) == window(store)[:1]


@pytest.mark.parametrize("name", ["types", "ddl", "orphans", "shop"])
def test_a_recording_comes_out_as_pairing_and_sorting_gives_it(name: str, store: Store) -> None:
    records = list(recorded(name))
    for first in range(0, len(records), 50):
        store.submit(records[first : first + 50], lambda error: None)
    dropped = {"orphans": 20}.get(name, 0)
    if dropped:  # a Prewrite without verdict holds back what comes behind it
        done = {r.start_ts for r in records if r.tp}
        lost = [r.start_ts for r in records if r.tp == 0 and r.start_ts not in done]
        write(store, *(rollback(ts) for ts in lost))
    settle(store)
    eventually(store.all_matched)
    expected = paired(records)
    assert window(store) == expected
    assert store.bounds(0, 1 << 62, 1 << 40, 1 << 50).transactions == len(expected)
    got = pulled(store, max(r.commit_ts for r in records))
    assert [row[:2] for row in got if row[0] != row[1]] == [row[:2] for row in expected]
    assert [row[0] for row in got if row[0] == row[1]] == [
        r.commit_ts for r in records if r.start_ts == r.commit_ts
    ]


@pytest.mark.parametrize("name", ["types", "ddl", "orphans", "shop"])
def test_a_real_pumps_directory_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    data_dir = restore(name, tmp_path)
    records = vlog_records(data_dir)
    with plyvel.DB(str(shutil.copytree(data_dir / "kv", tmp_path / "kv"))) as db:
        saved = int.from_bytes(db.get(b"!binlog!maxCommitTS"), "little")
    store = Store.open(data_dir, OPTIONS)
    try:
        assert store.max_commit_ts == max(r.commit_ts for r in records)
        assert store.max_commit_ts == saved or name == "shop"  # its last second wasn't saved
        expected = paired(records)
        assert expected
        assert window(store) == expected
        fakes = sorted(r.commit_ts for r in records if r.commit_ts and r.start_ts == r.commit_ts)
        got = pulled(store, store.max_commit_ts)
        assert [ts for ts, start, _ in got if ts == start] == fakes
        drained = [row for row in got if row[0] != row[1]]
        assert [row[:2] for row in drained] == [row[:2] for row in expected]
        for (commit_ts, start_ts, merged), (_, _, prewritten) in zip(
            drained, expected, strict=True
        ):
            message, began = (
                pb.binlog.Binlog.FromString(merged),
                pb.binlog.Binlog.FromString(prewritten),
            )
            assert (message.tp, message.start_ts, message.commit_ts) == (1, start_ts, commit_ts)
            assert (message.prewrite_value, message.ddl_query) == (
                began.prewrite_value,
                began.ddl_query,
            )
            assert message.ddl_job_id == began.ddl_job_id
            assert message.ddl_schema_state == began.ddl_schema_state
        later = store.max_commit_ts + 1000
        write(store, prewrite(later), commit(later, later + 1))
        settle(store, later + 2)
        assert window(store) == [*expected, (later + 1, later, prewrite(later).payload)]
    finally:
        store.close()
    assert vlog_records(data_dir) == [*records, prewrite(later), commit(later, later + 1)]


@pytest.mark.quick_cases("half")
@pytest.mark.parametrize("lost", ["all", "half"])
@pytest.mark.parametrize("name", ["types", "ddl", "orphans", "shop"])
def test_a_lost_index_is_made_again_from_the_value_log(
    name: str, lost: str, tmp_path: Path
) -> None:
    data_dir = restore(name, tmp_path)
    records = vlog_records(data_dir)
    with plyvel.DB(str(shutil.copytree(data_dir / "kv", tmp_path / "kv"))) as db:
        original = dict(db)
    # LevelDB's journal cut off: pointers and entries are those of an earlier time
    if lost == "half":
        [journal] = (data_dir / "kv").glob("*.log")
        os.truncate(journal, journal.stat().st_size // 2)
    else:
        shutil.rmtree(data_dir / "kv")
    store = Store.open(data_dir, OPTIONS)
    assert window(store) == paired(records)
    store.close()
    with plyvel.DB(str(data_dir / "kv")) as db:
        rebuilt = dict(db)
    del rebuilt[b"!sluice!synced"], rebuilt[b"~sluice!end"]
    for key in (b"!binlog!maxCommitTS", b"!binlog!handlePointer") if name == "shop" else ():
        assert int.from_bytes(rebuilt.pop(key), "little") > int.from_bytes(
            original.pop(key), "little"
        )
    assert rebuilt == original


def test_pulling_merges_prewrite_and_commit_and_passes_fakes_on(store: Store) -> None:
    start = BASE + 1
    p = pb.binlog.Binlog(
        tp=0,
        start_ts=start,
        commit_ts=0,
        prewrite_key=b"k",
        ddl_query=b"DROP TABLE t",
        ddl_job_id=77,
        ddl_schema_state=5,
    )
    c = pb.binlog.Binlog(
        tp=1,
        start_ts=start,
        commit_ts=BASE + 9,
        prewrite_key=b"k",
        ddl_job_id=0,
        ddl_schema_state=0,
    )
    dml_p, dml_c = prewrite(BASE + 20, b"rows", b"kk"), commit(BASE + 20, BASE + 21, b"kk")
    write(
        store,
        Record(0, start, 0, p.SerializeToString()),
        fake(BASE + 5),
        Record(1, start, BASE + 9, c.SerializeToString()),
        dml_p,
        dml_c,
        fake(BASE + 30),
    )
    got = pulled(store, BASE + 30)
    assert [row[:2] for row in got] == [
        (BASE + 5,) * 2,
        (BASE + 9, start),
        (BASE + 21, BASE + 20),
        (BASE + 30,) * 2,
    ]
    c.ddl_query, c.ddl_job_id, c.ddl_schema_state = p.ddl_query, 77, 5
    assert got[1][2] == c.SerializeToString()
    merged = pb.binlog.Binlog.FromString(dml_c.payload)
    merged.prewrite_value = b"rows"
    assert got[2][2] == merged.SerializeToString()
    assert got[3][2] == fake(BASE + 30).payload


def test_a_ddl_job_that_was_rolled_back_first_and_committed_later_comes_once(store: Store) -> None:
    """TiDB tries a step of a job again: two Prewrites of one job id, of which one is committed."""

    def step(start: int) -> Record:
        began = pb.binlog.Binlog(
            tp=0,
            start_ts=start,
            commit_ts=0,
            prewrite_key=b"k",
            ddl_query=b"ALTER TABLE t",
            ddl_job_id=77,
            ddl_schema_state=5,
        )
        return Record(0, start, 0, began.SerializeToString())

    first, second = BASE + 1, BASE + 5
    write(store, step(first))
    write(store, rollback(first), step(second), prewrite(BASE + 6), commit(BASE + 6, BASE + 8))
    write(store, commit(second, BASE + 9))
    settle(store)
    for rows in (window(store, 0, BASE + 20), pulled(store, BASE + 9)):
        found = [pb.binlog.Binlog.FromString(payload) for _, _, payload in rows]
        ddl = [
            (ts, message.start_ts)
            for (ts, _, _), message in zip(rows, found, strict=True)
            if message.ddl_job_id
        ]
        assert ddl == [(BASE + 9, second)]


def test_pulling_follows_live_and_stops_when_told(store: Store) -> None:
    stop, seen = threading.Event(), []
    reader = threading.Thread(
        target=lambda: seen.extend(e.commit_ts for e in store.pull(BASE + 150, stop))
    )
    reader.start()
    for i in range(5):
        write(store, *transactions(1, i))
        eventually(lambda i=i: len(seen) == i)  # it follows: each comes before the next is written
    write(store, fake(BASE + 551))
    eventually(lambda: len(seen) == 5)
    stop.set()
    reader.join(60)
    assert not reader.is_alive()
    assert seen == [BASE + 250, BASE + 350, BASE + 450, BASE + 550, BASE + 551]


def test_a_reader_ends_when_the_store_closes(tmp_path: Path) -> None:
    store = Store.open(tmp_path, OPTIONS)
    write(store, *transactions(3))
    seen: list[int] = []
    reader = threading.Thread(
        target=lambda: seen.extend(e.commit_ts for e in store.pull(0, threading.Event()))
    )
    reader.start()
    settle(store)
    eventually(lambda: len(seen) == 3)
    store.close()
    reader.join(60)
    assert not reader.is_alive()
    assert len(seen) == 3


def test_bounds_is_the_largest_window_within_both_limits(store: Store) -> None:
    write(store, *transactions(50, value=b"x" * 100))
    settle(store)
    rows = window(store)
    sizes = [len(row[2]) + 24 for row in rows]
    assert store.bounds(0, 1 << 62, 10, 1 << 40) == WindowReach(rows[9][0], 10, sum(sizes[:10]))
    assert store.bounds(rows[9][0], 1 << 62, 10, 1 << 40) == WindowReach(
        rows[19][0], 10, sum(sizes[10:20])
    )
    assert store.bounds(0, 1 << 62, 1000, sum(sizes[:7])) == WindowReach(
        rows[6][0], 7, sum(sizes[:7])
    )
    assert store.bounds(0, 1 << 62, 1000, sum(sizes[:7]) - 1).transactions == 6
    assert store.bounds(0, 1 << 62, 1000, 1) == WindowReach(rows[0][0], 1, sizes[0])
    assert store.bounds(0, rows[3][0], 1000, 1 << 40) == WindowReach(rows[3][0], 4, sum(sizes[:4]))
    top = store.max_commit_ts
    assert store.bounds(0, 1 << 62, 1000, 1 << 40) == WindowReach(top, 50, sum(sizes))
    assert store.bounds(top, 1 << 62, 10, 10) == WindowReach(top, 0, 0)
    assert store.bounds(top + 5, 1 << 62, 10, 10) == WindowReach(top + 5, 0, 0)


def test_many_chunks_and_transactions_that_span_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.pump_service.store.window_reader.CHUNK_ENTRIES", 16)
    monkeypatch.setattr("sluice.pump_service.store.window_reader.BATCH_ROWS", 5)
    monkeypatch.setattr(store._reader.transactions.__func__, "__defaults__", (16,))  # type: ignore[attr-defined]
    long = [prewrite(BASE + 1, b"long"), prewrite(BASE + 2, b"longer")]
    records = [
        *long,
        *transactions(200, 1),
        commit(BASE + 2, BASE + 30_000),
        commit(BASE + 1, BASE + 30_001),
    ]
    write(store, *records)
    settle(store)
    assert window(store) == paired(records)
    assert len(list(store.read_window(0, store.max_commit_ts))) > 40
    assert [row[:2] for row in pulled(store, BASE + 30_001)] == [row[:2] for row in paired(records)]


def test_payloads_from_nothing_to_megabytes(store: Store) -> None:
    records: list[Record] = []
    for i, size in enumerate([0, 1, 5_000_000, 100, 70_000, 0, 9_000_000, 65_536]):
        records += [
            prewrite(BASE + 10 * i + 1, b"v" * size),
            commit(BASE + 10 * i + 1, BASE + 10 * i + 2),
        ]
    write(store, *records)
    settle(store)
    assert window(store) == paired(records)
    assert store.bounds(0, 1 << 62, 100, 6_000_000).transactions == 6


def test_odd_encodings_of_a_binlog_are_understood(store: Store) -> None:
    message = pb.binlog.Binlog.FromString(prewrite(BASE + 1).payload)
    turned = b"\x18\x00" + b"\x10" + prewrite(BASE + 1).payload[3:12] + b"\x08\x00\x2a\x01z"
    assert pb.binlog.Binlog.FromString(turned).start_ts == message.start_ts
    small = pb.binlog.Binlog(tp=1, start_ts=5, commit_ts=300).SerializeToString()
    write(
        store,
        prewrite(5),
        Record(0, BASE + 1, 0, turned),
        Record(1, 5, 300, small),
        commit(BASE + 1, BASE + 2),
    )
    settle(store)
    assert window(store) == [(300, 5, prewrite(5).payload), (BASE + 2, BASE + 1, turned)]
    assert [row[:2] for row in pulled(store, BASE + 2)] == [(300, 5), (BASE + 2, BASE + 1)]


# -- what isn't a plain transaction


def test_a_commit_without_prewrite_is_left_out_and_counted(store: Store) -> None:
    write(store, commit(BASE + 1, BASE + 2), prewrite(BASE + 3), commit(BASE + 3, BASE + 4))
    settle(store)
    assert [row[0] for row in window(store)] == [BASE + 4]
    assert [row[0] for row in pulled(store, BASE + 4)] == [BASE + 4]
    assert store.stats().missing_prewrites >= 1


def test_records_that_come_twice_are_read_once(store: Store) -> None:
    p, c = prewrite(BASE + 1), commit(BASE + 1, BASE + 2)
    write(store, p, p, c, c)
    write(store, c)
    settle(store)
    assert window(store) == [(BASE + 2, BASE + 1, p.payload)]
    eventually(store.all_matched)


@pytest.mark.parametrize("here", [False, True])
def test_a_prewrite_that_is_just_being_written_isn_t_matched(store: Store, here: bool) -> None:
    """A pump that leaves would give up the versions by which TiKV keeps its verdict."""
    found: list[bool] = []
    store.submit([prewrite(BASE + 1)], lambda _: found.append(store.all_matched()), here=here)
    eventually(lambda: found)
    assert found == [False]
    write(store, commit(BASE + 1, BASE + 2))
    eventually(store.all_matched)


def test_an_open_prewrite_holds_back_max_commit_ts_and_all_matched(store: Store) -> None:
    write(store, prewrite(BASE + 1), prewrite(BASE + 2), commit(BASE + 2, BASE + 3))
    assert store.barrier(BASE + 10, 0.2) < BASE + 3
    assert not store.all_matched()
    assert store.stats().oldest_pending_ts == BASE + 1
    write(store, commit(BASE + 1, BASE + 4))
    assert store.barrier(BASE + 10, 10) == BASE + 10
    eventually(store.all_matched)
    assert [row[0] for row in window(store)] == [BASE + 3, BASE + 4]


def test_a_barrier_writes_nothing(store: Store) -> None:
    write(store, *transactions(2))
    settle(store)
    size, records = store.stats().value_log_bytes, store.stats().records
    assert store.barrier(BASE + (1 << 41), 10) == BASE + (1 << 41)
    assert (store.stats().value_log_bytes, store.stats().records) == (size, records)


def test_reading_beyond_max_commit_ts_is_refused(store: Store) -> None:
    write(store, *transactions(2))
    settle(store, BASE + 1000)
    with pytest.raises(ValueError, match="isn't complete yet"):
        store.read_window(0, BASE + 1001)


@pytest.mark.parametrize(
    "record",
    [
        Record(0, -1, 0, b""),
        Record(1, 1, 1 << 63, b""),
        Record(0, 0, 0, b""),
        Record(0, 0, 5, b""),
        Record(2, 0, 0, b""),
    ],
)
def test_a_record_that_has_no_place_is_refused_and_nothing_else(
    record: Record, store: Store
) -> None:
    with pytest.raises(InvalidRecordError, match="can't be stored"):
        write(store, prewrite(BASE + 50), record)
    write(store, *transactions(2))
    settle(store)
    assert len(window(store)) == 2


# -- damage and restarts


def test_a_closed_store_opens_with_all_it_had(tmp_path: Path) -> None:
    store = Store.open(tmp_path, OPTIONS)
    records = transactions(300, value=b"x" * 300)
    write(store, *records)
    settle(store)
    top = max(r.commit_ts for r in records)
    store.close()
    store.close()
    assert [s.sealed for s in [Segment(tmp_path / "value" / "000000.vlog", 0)]] == [True]
    again = Store.open(tmp_path, OPTIONS)
    assert again.max_commit_ts == top
    assert window(again) == paired(records)
    again.close()
    answer = start_write(again, *transactions(1))
    assert isinstance(answer.error, StoreClosedError)
    with pytest.raises(StoreClosedError):
        again.bounds(0, 10, 1, 1)


def test_bad_records_are_left_out_counted_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.open(tmp_path, OPTIONS)
    records = transactions(20)
    write(store, *records)
    settle(store)
    doomed_p, doomed_c = BASE + 100 * 5, BASE + 100 * 9 + 150
    places = [store._index.get(doomed_p), store._index.get(doomed_c)]
    store.close()
    path = tmp_path / "value" / "000000.vlog"
    data = bytearray(path.read_bytes())
    for place in places:
        assert place is not None
        data[place.offset + 30] ^= 4
    path.write_bytes(data)
    expected = [row for row in paired(records) if row[1] != doomed_p and row[0] != doomed_c]
    again = Store.open(tmp_path, OPTIONS)
    for _ in range(2):
        assert window(again) == expected
    assert again.stats().corrupt_records == 2
    assert sum("checksum mismatch" in line for line in caplog.messages) == 2
    again.close()
    shutil.rmtree(tmp_path / "kv")
    once_more = Store.open(tmp_path, OPTIONS, lambda start, key: pytest.fail("too early to ask"))
    open_start = next(r.start_ts for r in records if r.commit_ts == doomed_c)
    write(once_more, commit(open_start, doomed_c))  # as the resolver would
    settle(once_more)
    healed = [row for row in paired(records) if row[1] != doomed_p]
    assert window(once_more) == healed
    assert once_more.stats().skipped_bytes > 0
    once_more.close()


def test_a_torn_tail_costs_only_what_was_not_acknowledged(tmp_path: Path) -> None:
    store = Store.open(tmp_path, OPTIONS)
    records = transactions(20)
    write(store, *records)
    settle(store)
    store.close()
    with (tmp_path / "value" / "000000.vlog").open("ab") as file:
        file.write(b"\xe8\x56\x3a\x82" + (500).to_bytes(8, "little") + b"half a rec")
    again = Store.open(tmp_path, OPTIONS)
    [torn] = (tmp_path / "value").glob("*.torn-*")
    assert torn.read_bytes().endswith(b"half a rec")
    assert again.stats().skipped_bytes == 0
    more = transactions(20, 100)
    write(again, *more)
    settle(again)
    assert window(again) == paired(records + more)
    again.close()
    shutil.rmtree(tmp_path / "kv")
    once_more = Store.open(tmp_path, OPTIONS)
    assert window(once_more) == paired(records + more)
    once_more.close()


@pytest.mark.parametrize("whose", ["the original's", "ours"])
@pytest.mark.parametrize("change", ["older", "beyond", "into a record"])
def test_pointers_that_are_wrong_lose_nothing(change: str, whose: str, tmp_path: Path) -> None:
    store = Store.open(tmp_path, OPTIONS)
    records = transactions(100)
    write(store, *records)
    settle(store)
    store.close()
    value = {
        "older": bytes(12),
        "beyond": b"\x09" + bytes(11),
        "into a record": bytes(4) + (77).to_bytes(8, "little"),
    }
    with plyvel.DB(str(tmp_path / "kv")) as db:
        for key in (b"!binlog!headPointer", b"!binlog!handlePointer"):
            db.put(key, value[change])
        if whose == "ours":
            db.put(b"!sluice!synced", value[change] * 2 + bytes(8))
        else:
            db.delete(b"!sluice!synced")
        for key in list(db.iterator(prefix=b"ts:", include_value=False))[100:]:
            db.delete(key)
        db.put(b"!binlog!maxCommitTS", bytes(8))
    again = Store.open(tmp_path, OPTIONS)
    assert window(again) == paired(records)
    again.close()


def test_a_second_process_on_the_directory_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path, OPTIONS)
    code = f"from sluice.pump_service.store import *; Store.open({str(tmp_path)!r}, StoreOptions())"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "StoreLockedError" in result.stderr
    assert "another pump is running on" in result.stderr
    with pytest.raises(StoreLockedError):
        Store.open(tmp_path, OPTIONS)
    store.close()
    Store.open(tmp_path, OPTIONS).close()


def test_a_directory_that_can_not_be_opened_is_let_go_of(tmp_path: Path) -> None:
    (tmp_path / "value").write_text("not a directory")
    with pytest.raises(OSError):
        Store.open(tmp_path, OPTIONS)
    (tmp_path / "value").unlink()
    Store.open(tmp_path, OPTIONS).close()


# -- faults


@pytest.mark.parametrize("where", ["vlog.fsync=error", "vlog.fsync=nospace", "vlog.write=error"])
def test_after_a_failed_write_or_fsync_nothing_is_accepted_any_more(
    where: str, tmp_path: Path
) -> None:
    store = Store.open(tmp_path, OPTIONS)
    first = transactions(3)
    write(store, *first)
    settle(store, BASE + 350)
    failpoints.configure(where)
    with pytest.raises(StoreFailedError, match="until the pump is started again"):
        write(store, *transactions(3, 10))
    failpoints.configure("")
    with pytest.raises(StoreFailedError):
        write(store, *transactions(3, 20))
    assert store.stats().failed
    assert not store.stats().writable
    assert window(store, 0, BASE + 350) == paired(first)  # what was acknowledged is still served
    store.close()
    again = Store.open(tmp_path, OPTIONS)
    write(again, *transactions(3, 30))
    settle(again)
    assert set(paired(first + transactions(3, 30))) <= set(window(again))
    again.close()


def test_every_submission_is_answered_once_when_the_disk_fails(tmp_path: Path) -> None:
    store = Store.open(tmp_path, OPTIONS)
    failpoints.configure("writer.before_write=sleep:0.2@2,vlog.fsync=error@2")
    answers = [start_write(store, *transactions(1))]
    assert answers[0].done.wait(60)
    answers += [start_write(store, *transactions(1, i)) for i in range(1, 50)]
    assert all(answer.done.wait(60) for answer in answers)
    time.sleep(0.05)
    assert {answer.calls for answer in answers} == {1}
    assert answers[0].error is None
    assert all(isinstance(answer.error, StoreFailedError) for answer in answers[1:])
    store.close()


def test_too_little_space_refuses_all_but_fakes_with_the_originals_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)

    def statvfs(path: object) -> object:
        return os.statvfs_result([*real[:2], 1000, 100, free, *real[5:10]])

    free = 100
    options = dataclasses.replace(
        OPTIONS, stop_write_at_available_space=50 * real.f_frsize, space_check_interval_s=0.02
    )
    monkeypatch.setattr("sluice.pump_service.store.space.os.statvfs", statvfs)
    store = Store.open(tmp_path, options)
    write(store, *transactions(2))
    free = 50
    eventually(lambda: not store.stats().writable)
    with pytest.raises(NoSpaceError) as refused:
        write(store, *transactions(2, 5))
    frsize = real.f_frsize
    assert (
        str(refused.value)
        == f"no available space, available: {50 * frsize}, StopWriteAtAvailableSpace: {50 * frsize}"
    )
    assert store.stats().available_bytes == 50 * frsize
    assert store.stats().capacity_bytes == 1000 * frsize
    write(store, fake(BASE + 10_000))
    free = 51
    eventually(lambda: store.stats().writable)
    write(store, *transactions(2, 5))
    store.close()


def test_an_index_that_fails_for_a_while_loses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    failpoints.configure("index.before_batch=error@1")
    write(store, *transactions(2))
    write(store, *transactions(2, 5))
    settle(store)
    assert window(store) == paired(transactions(2) + transactions(2, 5))
    assert store.stats().index_errors == 1


def test_when_the_index_stalls_writes_go_on_and_it_catches_up_in_order(tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, kv_chan_cap=100, segment_limit=20_000)
    store = Store.open(tmp_path, options)
    write(store, *transactions(1))
    settle(store, BASE + 160)
    records = transactions(1500, 1)
    with stalled_index(store):
        for first in range(0, len(records), 20):
            write(store, *records[first : first + 20])
        marked = threading.Thread(target=settle, args=(store, records[-1].commit_ts + 1))
        marked.start()
        stats = store.stats()
        assert stats.catching_up
        assert stats.slow_index_count == 1
        assert stats.queued_for_index <= 100 + 20
        assert store.max_commit_ts < records[-1].commit_ts
    marked.join(60)
    assert window(store) == paired(transactions(1) + records)
    assert store.wait_caught_up(60)
    more = transactions(100, 2000)
    write(store, *more)
    settle(store, BASE + (1 << 41))
    assert window(store) == paired(transactions(1) + records + more)
    assert store.stats().slow_index_count == 1
    store.close()


def test_closing_while_the_index_is_behind_leaves_the_rest_to_the_next_start(
    tmp_path: Path,
) -> None:
    options = dataclasses.replace(OPTIONS, kv_chan_cap=100)
    store = Store.open(tmp_path, options)
    failpoints.configure("index.before_batch=sleep:0.3")
    records = transactions(3000)
    for first in range(0, len(records), 50):
        write(store, *records[first : first + 50])
    store.close()
    failpoints.configure("")
    again = Store.open(tmp_path, options)
    settle(again)
    assert window(again) == paired(records)
    again.close()


def test_a_failing_write_keeps_the_error_of_the_system(tmp_path: Path) -> None:
    store = Store.open(tmp_path, OPTIONS)
    failpoints.configure("vlog.fsync=nospace")
    with pytest.raises(StoreFailedError) as failed:
        write(store, *transactions(1))
    assert isinstance(failed.value.__cause__, OSError)
    assert failed.value.__cause__.errno == errno.ENOSPC
    store.close()


# -- garbage collection


def test_gc_removes_segments_and_entries_but_keeps_ten_minutes_more(tmp_path: Path) -> None:
    minute = 60_000 << 18
    options = dataclasses.replace(OPTIONS, segment_limit=200)
    store = Store.open(tmp_path, options)
    records = []
    for i in range(60):
        records += [
            prewrite(BASE + i * minute, b"x" * 100),
            commit(BASE + i * minute, BASE + i * minute + 1),
        ]
    for record in records:
        write(store, record)
    settle(store, BASE + 60 * minute)
    before = store.stats().segments
    gc_ts = BASE + 30 * minute + 5
    assert store.gc(gc_ts) == gc_ts == store.gc_ts
    assert store.stats().segments < before - 10
    assert store.lookup(BASE + 20 * minute) is None
    assert store.lookup(BASE + 21 * minute) == records[42].payload
    assert window(store, gc_ts) == [row for row in paired(records) if row[0] > gc_ts]
    for lo in (0, gc_ts - 1):
        with pytest.raises(WindowPurgedError, match="purged"):
            store.read_window(lo, store.max_commit_ts)
        with pytest.raises(WindowPurgedError):
            store.bounds(lo, store.max_commit_ts, 1, 1)
    with pytest.raises(WindowPurgedError):
        store.pull(gc_ts - 1, threading.Event())
    assert pulled(store, records[-1].commit_ts, gc_ts)[0][0] == BASE + 31 * minute + 1
    assert store.gc(gc_ts - minute) == gc_ts, "it never goes back"
    assert store.gc(store.max_commit_ts + minute) == gc_ts, "nor beyond what is readable"
    store.close()
    again = Store.open(tmp_path, options)
    assert again.gc_ts == gc_ts
    assert window(again, gc_ts) == [row for row in paired(records) if row[0] > gc_ts]
    again.close()


def test_a_reader_that_gc_overtakes_is_told(store: Store) -> None:
    hour = 3_600_000 << 18
    for i in range(9):
        write(
            store,
            prewrite(BASE + i * hour, b"x" * 3_000_000),
            commit(BASE + i * hour, BASE + i * hour + 1),
        )
    settle(store, BASE + 10 * hour)
    batches = store.read_window(0, store.max_commit_ts)
    pull = store.pull(BASE, threading.Event())
    assert next(batches).num_rows >= 1
    assert next(pull).commit_ts == BASE + 1
    store.gc(BASE + 6 * hour)
    with pytest.raises(WindowPurgedError):
        list(batches)
    with pytest.raises(WindowPurgedError):
        list(pull)
    assert next(store.pull(0, threading.Event())).commit_ts == BASE + 6 * hour + 1


def test_after_a_failed_fsync_readers_still_get_a_barrier_over_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    store = Store.open(tmp_path, OPTIONS)
    write(store, *transactions(3))
    failpoints.configure("vlog.fsync=error")
    with pytest.raises(StoreFailedError):
        write(store, *transactions(1, 10))
    assert store.barrier(BASE + 5000, 10) == BASE + 5000
    assert window(store, 0, BASE + 5000) == paired(transactions(3))
    store.close()


def test_gc_spares_what_an_open_prewrite_may_need(store: Store) -> None:
    hour = 3_600_000 << 18
    write(store, prewrite(BASE, b"open"))
    for i in range(1, 5):
        write(store, prewrite(BASE + i * hour), commit(BASE + i * hour, BASE + i * hour + 1))
    store.barrier(BASE + 5 * hour, 0.1)
    assert store.gc(BASE + 3 * hour) == 0
    write(store, commit(BASE, BASE + 5 * hour))
    settle(store, BASE + 6 * hour)
    assert store.gc(BASE + 3 * hour) == BASE + 3 * hour


def test_gc_spares_the_prewrite_of_a_long_transaction_that_is_still_readable(
    tmp_path: Path,
) -> None:
    hour = 3_600_000 << 18
    options = dataclasses.replace(OPTIONS, segment_limit=200)
    store = Store.open(tmp_path, options)
    records = [prewrite(BASE, b"x" * 200)]
    for i in range(1, 5):
        records += [
            prewrite(BASE + i * hour, b"x" * 200),
            commit(BASE + i * hour, BASE + i * hour + 1),
        ]
    records += [commit(BASE, BASE + 5 * hour)]
    for record in records:
        write(store, record)
    settle(store, BASE + 6 * hour)
    store.close()
    store = Store.open(tmp_path, options)
    assert store.gc(BASE + 4 * hour) == BASE + 4 * hour
    assert window(store, BASE + 4 * hour) == [
        row for row in paired(records) if row[0] > BASE + 4 * hour
    ]
    write(store, prewrite(BASE + 7 * hour), commit(BASE + 7 * hour, BASE + 7 * hour + 1))
    settle(store, BASE + 8 * hour)
    segments = store.stats().segments
    assert store.gc(BASE + 6 * hour) == BASE + 6 * hour
    assert store.stats().segments < segments
    assert store.lookup(BASE) is None
    store.close()


def test_an_index_lost_after_gc_does_not_pretend_to_be_complete(tmp_path: Path) -> None:
    hour = 3_600_000 << 18
    options = dataclasses.replace(OPTIONS, segment_limit=200)
    store = Store.open(tmp_path, options)
    for i in range(10):
        write(
            store,
            prewrite(BASE + i * hour, b"x" * 200),
            commit(BASE + i * hour, BASE + i * hour + 1),
        )
    settle(store, BASE + 10 * hour)
    gc_ts = store.gc(BASE + 5 * hour)
    kept = window(store, gc_ts)
    store.close()
    shutil.rmtree(tmp_path / "kv")
    again = Store.open(tmp_path, options)
    with pytest.raises(WindowPurgedError):
        window(again, BASE)
    assert BASE < again.gc_ts <= gc_ts
    assert window(again, gc_ts) == kept
    again.close()


def test_late_commit_slack_is_ten_minutes() -> None:
    assert LATE_COMMIT_SLACK == 600_000 << 18

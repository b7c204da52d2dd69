"""The relay log's promises, on local disk and in an object store."""

from __future__ import annotations

import json
import os
import resource
import threading
from dataclasses import replace

import pytest
from obstore.store import LocalStore
from relaykit import BASE, HOUR, batch, land, window

from sluice.relay import (
    ClaimLostError,
    Control,
    RelayCorruptError,
    RelayError,
    RelayGapError,
    RelayLog,
    WindowConflictError,
    hour_of,
)
from sluice.relay.storage import LocalStorage, open_storage
from sluice.relay.storage._object_store import ObjectStorage


@pytest.fixture(params=["local", "objects"])
def log(request, tmp_path):
    if request.param == "local":
        return RelayLog.open(tmp_path.as_uri())
    return RelayLog(ObjectStorage(LocalStore(tmp_path), tmp_path.as_uri()))


def test_files_are_where_the_architecture_says(log, tmp_path):
    part = log.write_part(BASE, BASE + 9, "abc.1", 4, [batch([(BASE + 5, 0)])])
    log.commit(window(BASE, BASE + 9, [part]))
    assert (tmp_path / f"windows/2026-11-21T09/{BASE:020d}.json").exists()
    assert (tmp_path / f"parts/2026-11-21T09/{BASE:020d}-{BASE + 9:020d}-abc.1-4.arrow").exists()
    assert hour_of(BASE + HOUR) == "2026-11-21T10"


def test_a_committed_window_is_read_back_as_it_was(log):
    part = log.write_part(5, 10, "t", 0, [batch([(6, 0), (6, 1)]), batch([(6, 2), (9, 0)])])
    made = window(
        5,
        10,
        [part],
        transactions=2,
        changes=4,
        tables={"7": {"name": "t"}},
        ddls=({"commit_ts": 8, "query": "ß"},),
        truncated_tables=(3,),
        timings_ms={"plan": 1.5},
    )
    log.commit(made)
    assert log.next(5) == made
    assert (part.rows, part.transactions, part.min_commit_ts, part.max_commit_ts) == (4, 2, 6, 9)
    table = log.read([made])
    assert table["row"].to_pylist() == [b"row 6/0", b"row 6/1", b"row 6/2", b"row 9/0"]


def test_a_part_without_changes_leaves_no_file(log, tmp_path):
    assert log.write_part(5, 10, "t", 0, []) is None
    assert log.write_part(5, 10, "t", 0, [batch([])]) is None
    assert not list(tmp_path.rglob("*.arrow"))


def test_an_uncommitted_part_is_never_seen(log):
    log.write_part(5, 10, "t", 0, [batch([(6, 0)])])
    assert log.next(5) is None and log.find(5) is None and log.last() is None
    assert list(log.windows(0)) == []


def test_only_one_of_two_writers_commits_a_window(log):
    first = land(log, 5, 10, 6)
    with pytest.raises(
        WindowConflictError, match="another process landed the window that begins at 5"
    ):
        land(log, 5, 12, 6, 11, token="other")
    assert log.next(5) == first


def test_a_part_name_is_never_written_twice(log):
    log.write_part(5, 10, "t", 0, [batch([(6, 0)])])
    with pytest.raises(FileExistsError):
        log.write_part(5, 10, "t", 0, [batch([(7, 0)])])


@pytest.mark.parametrize("keys", [[(6, 1), (6, 0)], [(7, 0), (6, 0)], [(6, 0), (6, 0)]])
def test_changes_out_of_order_are_refused_and_leave_no_file(log, tmp_path, keys):
    for batches in ([batch(keys)], [batch(keys[:1]), batch(keys[1:])]):
        with pytest.raises(
            RelayError, match=r"out of order at commit_ts 6, start_ts 5, position 0"
        ):
            log.write_part(5, 10, "t", 0, batches)
    assert not list(tmp_path.rglob("*.arrow"))


def test_a_window_is_found_by_the_timestamp_before_its_commits(log):
    first = land(log, BASE, BASE + HOUR, BASE + 1)
    second = land(log, BASE + HOUR, BASE + HOUR + 5)
    third = land(log, BASE + HOUR + 5, BASE + 5 * HOUR)
    assert log.find(0) == first  # follows
    assert log.find(BASE) == log.find(BASE + 1) == log.find(BASE + HOUR - 1) == first
    assert log.find(BASE + HOUR) == second
    assert log.find(BASE + 4 * HOUR) == third
    assert log.find(BASE + 5 * HOUR) is None
    assert log.last() == third and log.first() == first
    assert [w.lo for w in log.windows(BASE + 7, BASE + HOUR + 1)] == [first.lo, second.lo]
    assert list(log.windows(BASE)) == [first, second, third]


def test_windows_that_land_while_one_is_looked_for_are_no_gap(log, monkeypatch):
    land(log, 5, 10)
    names, waiting = log.storage.names, [10, 15]

    def names_after_landing(path):
        while waiting:
            land(log, lo := waiting.pop(0), lo + 5)
        return names(path)

    monkeypatch.setattr(log.storage, "names", names_after_landing)
    found = log.find(10)
    assert (found.lo, found.hi) == (10, 15)
    assert not waiting


def test_a_broken_chain_is_an_error_that_names_the_missing_record(log, tmp_path):
    land(log, 5, 10)
    missing = land(log, 10, 20)
    land(log, 20, 30)
    (tmp_path / missing.path).unlink()
    with pytest.raises(RelayGapError, match=f"no window begins at 10.*restore {missing.path}"):
        list(log.windows(5))


def test_a_damaged_part_is_an_error_that_names_file_and_commits(log, tmp_path):
    made = land(log, 5, 10, 6, 8)
    file = tmp_path / made.parts[0].path
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], b""):
        file.write_bytes(damaged)
        with pytest.raises(
            RelayCorruptError, match=rf"{made.parts[0].path}.*commit_ts 6 to 8.*restore the file"
        ):
            log.read([made])
    file.unlink()
    with pytest.raises(RelayCorruptError, match="the file is missing; restore"):
        log.read([made])


@pytest.mark.quick_cases(every=2)
def test_a_record_damaged_anywhere_is_an_error(log, tmp_path):
    made = land(log, 5, 10, 6)
    file = tmp_path / made.path
    whole = file.read_bytes()
    assert log.next(5) == made
    for at in range(len(whole) - 1):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(RelayCorruptError, match=rf"{made.path}.*restore the file"):
            log.next(5)
    for length in range(0, len(whole) - 1, 7):
        file.write_bytes(whole[:length])
        with pytest.raises(RelayCorruptError):
            log.last()


def test_a_record_that_contradicts_itself_is_not_committed(log):
    part = log.write_part(5, 10, "t", 0, [batch([(6, 0)])])
    for bad in (window(5, 5), window(7, 10, [part]), window(5, 10, ddls=({"commit_ts": 11},))):
        with pytest.raises(ValueError):
            log.commit(bad)
    assert log.last() is None


def test_the_newest_claimant_owns_a_role(log):
    first = log.claim("land")
    first.check()
    second = log.claim("land")
    log.claim("apply").check()
    second.check()
    with pytest.raises(ClaimLostError, match=f"taken over by process {os.getpid()}"):
        first.check()


def test_control_says_what_operators_ask_for(log, tmp_path):
    assert log.control() == Control(land_paused=False, apply_paused=False, apply_until_ts=None)
    log.change_control(lambda _: Control(land_paused=True, apply_until_ts=5))
    assert json.loads((tmp_path / "control" / "000000000001.json").read_text()) == {
        "land_paused": True, "apply_paused": False, "apply_until_ts": 5, "accepted": None
    }  # fmt: skip
    assert log.control() == Control(land_paused=True, apply_until_ts=5)
    log.change_control(lambda _: Control())
    assert log.control() == Control()


@pytest.mark.quick_cases(every=2)
@pytest.mark.parametrize("others", [1, 5, 90])
@pytest.mark.parametrize("before", [0, 3])
def test_an_order_that_was_given_meanwhile_is_kept_however_late_the_other_one_wakes(
    log, before, others
):
    for n in range(before):
        log.change_control(lambda _: Control(apply_until_ts=n + 1))
    calls = []

    def pause(control):
        calls.append(control)
        if len(calls) == 1:  # this process stands still while others give orders
            for n in range(others):
                log.change_control(lambda now, n=n: replace(now, apply_until_ts=100 + n))
        return replace(control, land_paused=True)

    assert log.change_control(pause) == Control(land_paused=True, apply_until_ts=100 + others - 1)
    assert log.control() == Control(land_paused=True, apply_until_ts=100 + others - 1)
    assert len(calls) == 2


def test_many_orders_at_a_time_all_count(log):
    def count(number):
        for n in range(10):
            log.change_control(
                lambda now: replace(
                    now, apply_until_ts=(now.apply_until_ts or 0) + 1, accepted=f"{number}-{n}"
                )
            )

    threads = [threading.Thread(target=count, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.control().apply_until_ts == 40


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"paused": true}',
        '{"land_paused": 1}',
        '{"apply_until_ts": "now"}',
        '{"apply_until_ts": -1}',
    ],
)
def test_a_control_file_that_makes_no_sense_is_refused_by_name(log, tmp_path, text):
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "000000000001.json").write_text(text)
    with pytest.raises(RelayCorruptError, match=r"control/000000000001\.json.*remove it"):
        log.control()


def test_cleaning_removes_only_parts_that_no_record_can_name(log, tmp_path):
    kept = land(log, 5, 10, 6)
    lost = log.write_part(5, 11, "zombie", 0, [batch([(6, 0)])])  # its window was landed by another
    passed = log.write_part(7, 10, "zombie", 1, [batch([(8, 0)])])  # the chain went past it
    land(log, 10, 20, 15)
    running = log.write_part(20, 30, "t", 0, [batch([(25, 0)])])  # may be committed any moment
    assert log.clean_unreferenced() == 2
    assert not (tmp_path / lost.path).exists() and not (tmp_path / passed.path).exists()
    assert log.read([kept]).num_rows == 1
    log.commit(window(20, 30, [running]))
    assert log.read(log.windows(5)).num_rows == 3
    assert log.clean_unreferenced() == 0


def test_purging_keeps_what_was_not_applied_and_the_end_of_the_chain(log, tmp_path):
    land(log, BASE, BASE + HOUR, BASE + 1)
    land(log, BASE + HOUR, BASE + 2 * HOUR, BASE + HOUR + 1)
    last = land(log, BASE + 2 * HOUR, BASE + 3 * HOUR, BASE + 2 * HOUR + 1)
    assert log.purge(BASE + 2 * HOUR - 1) == 1
    assert log.first().lo == BASE + HOUR
    assert log.purge(BASE + 9 * HOUR) == 1
    assert log.last() == last and log.read([last]).num_rows == 1
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == [hour_of(last.lo)]
    if isinstance(log._storage, LocalStorage):  # an object store has no folders
        assert [path.name for path in (tmp_path / "windows").iterdir()] == [hour_of(last.lo)]
    assert len(list(tmp_path.rglob("*.arrow"))) == 1


@pytest.mark.parametrize("url", ["relative/dir", "file://host/dir", "nosuch://bucket/dir"])
def test_a_url_nobody_understands_is_named(url):
    with pytest.raises(RelayError, match=url):
        open_storage(url)


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    log = RelayLog.open(tmp_path.as_uri())
    land(log, 5, 10, 6)

    def broken(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        log.write_part(10, 20, "t", 0, [batch([(15, 0)])])
    with pytest.raises(OSError, match="Input/output error"):
        log.commit(window(10, 20))
    monkeypatch.undo()
    assert log.next(10) is None
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_a_disk_that_takes_no_more_is_told_with_the_file_that_was_written(tmp_path):
    storage = LocalStorage(tmp_path, tmp_path.as_uri())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"jobs/big\.json"):
            storage.create("jobs/big.json", bytes(2_000_000))
        with (
            pytest.raises(OSError, match=r"parts/one\.arrow"),
            storage.new_file("parts/one.arrow") as sink,
        ):
            sink.write(bytes(2_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

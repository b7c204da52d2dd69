"""Room in the value log: in calm traffic the file is longer than its records, and whatever ends the
pump then, nothing acknowledged is lost and nothing else is taken for a loss.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.pump_service.store import CorruptRecordError, Store, segment
from sluice.pump_service.store.binlog_head import encode_outcome
from sluice.pump_service.store.record_reader import RecordReader
from sluice.pump_service.store.segment import (
    BLOCK_BYTES,
    PREALLOCATED_BYTES,
    SMALL_WRITE_BYTES,
    RecordPointer,
    encode_record,
)
from sluice.pump_service.store.value_log import ValueLog
from tests.examples import examples
from tests.pump_service.storekit import (
    OPTIONS,
    copy_live,
    paired,
    settle,
    transactions,
    window,
    write,
)

TS = 470_614_549_921_792_019
NAME = "000000.vlog"


def payload(i: int, size: int = 0) -> bytes:
    """A Commit of TS+i with a field of `size` bytes, up to 127, of which none is zero."""
    return encode_outcome(1, TS + i, TS + i + 1) + (
        bytes((0x7A, size)) + b"y" * size if size else b""
    )


def calm(folder: Path, count: int = 8, size: int = 60) -> ValueLog:
    """A log with room behind `count` records."""
    log = ValueLog(folder, 1 << 30)
    for i in range(count):
        log.append([payload(i, size)], [TS + i + 1])
    assert (folder / NAME).stat().st_size > log.end.offset
    return log


def starts(log: ValueLog) -> list[int]:
    return [start - TS for batch in log.scan(log.first, log.end) for start in batch.starts.tolist()]


def image(log: ValueLog, folder: Path, target: Path) -> Path:
    """What a kill leaves, as another directory."""
    shutil.copytree(folder, target)
    assert (target / NAME).stat().st_size > log.end.offset
    return target / NAME


def test_small_appends_make_room_and_their_records_are_where_they_belong(tmp_path: Path) -> None:
    log = calm(tmp_path, 8)
    data = (tmp_path / NAME).read_bytes()
    assert data[: log.end.offset] == b"".join(encode_record(payload(i, 60)) for i in range(8))
    assert not data[log.end.offset :].strip(b"\0")
    assert starts(log) == list(range(8))


def test_room_that_is_used_up_is_made_again(tmp_path: Path) -> None:
    log = calm(tmp_path, 3)
    count = 3
    while log.end.offset < 2 * PREALLOCATED_BYTES:
        batch = [payload(count + i, 100) for i in range(20)]
        log.append(batch, [TS + count + i + 1 for i in range(20)])
        count += 20
    assert (tmp_path / NAME).stat().st_size > log.end.offset
    assert starts(log) == list(range(count))


@pytest.mark.parametrize(
    "size", [SMALL_WRITE_BYTES - 16 - 60, SMALL_WRITE_BYTES + 1, 3 * PREALLOCATED_BYTES]
)
def test_an_append_that_is_not_small_makes_the_file_as_long_as_its_records(
    size: int, tmp_path: Path
) -> None:
    log = calm(tmp_path)
    batch = [payload(100 + i, 100) for i in range(size // 100 + 20)]
    log.append(batch, [TS + 500_000])
    assert (tmp_path / NAME).stat().st_size == log.end.offset
    assert starts(log) == [*range(8), *range(100, 100 + len(batch))]


@pytest.mark.parametrize("count", [5, 2000])
def test_a_pump_that_ends_in_good_order_leaves_no_room(count: int, tmp_path: Path) -> None:
    log = calm(tmp_path, count)
    end = log.end.offset
    log.close()
    data = (tmp_path / NAME).read_bytes()
    footer = struct.pack("<qI", TS + count, 0x123AB922) if end >= 50 << 10 else b""
    assert data == b"".join(encode_record(payload(i, 60)) for i in range(count)) + footer


def test_a_full_segment_ends_in_its_footer_and_room_is_made_in_the_next_one(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 1000)
    for i in range(40):
        log.append([payload(i, 60)], [TS + i + 1])
    log.rotate_if_full()
    assert len(log.segments()) > 2
    for each in log.segments()[:-1]:
        data = each.path.read_bytes()
        assert len(data) == each.size + 12
        assert data.endswith(struct.pack("<I", 0x123AB922))
    assert starts(log) == list(range(40))


def test_what_is_not_synced_has_no_room(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 1 << 30, sync=False)
    for i in range(20):
        log.append([payload(i)], [TS + i + 1])
    assert (tmp_path / NAME).stat().st_size == log.end.offset


def test_room_that_a_kill_left_is_taken_off_and_counted_as_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = calm(tmp_path / "a")
    left = image(log, tmp_path / "a", tmp_path / "b")
    again = ValueLog(tmp_path / "b", 1 << 30)
    again.cut_torn_end(RecordPointer(0, 0))
    assert again.end == log.end
    assert left.stat().st_size == log.end.offset
    assert again.skipped_bytes == 0
    assert os.listdir(tmp_path / "b") == [NAME]
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    again.append([payload(8)], [TS + 9])
    assert starts(again) == list(range(9))


def test_an_empty_log_with_room_is_empty(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(bytes(PREALLOCATED_BYTES))
    log = ValueLog(tmp_path, 1 << 30)
    log.cut_torn_end(None)
    assert log.end == RecordPointer(0, 0)
    assert log.skipped_bytes == 0


def test_zeros_where_the_index_knows_a_record_are_damage_and_stay(tmp_path: Path) -> None:
    log = calm(tmp_path / "a")
    left = image(log, tmp_path / "a", tmp_path / "b")
    size = left.stat().st_size
    again = ValueLog(tmp_path / "b", 1 << 30)
    again.cut_torn_end(log.end)
    assert left.stat().st_size == size
    assert again.skipped_bytes == size - log.end.offset


@pytest.mark.parametrize(
    "length", [PREALLOCATED_BYTES + SMALL_WRITE_BYTES + 1, 4 * PREALLOCATED_BYTES]
)
def test_more_zeros_than_there_is_ever_room_are_a_write_that_was_cut_short_and_are_kept(
    length: int, tmp_path: Path
) -> None:
    (tmp_path / NAME).write_bytes(encode_record(payload(1)) + bytes(length))
    log = ValueLog(tmp_path, 1 << 30)
    log.cut_torn_end(None)
    assert starts(log) == [1]
    [aside] = tmp_path.glob("*.torn-*")
    assert aside.read_bytes() == bytes(length)


def test_a_disk_without_a_way_to_reserve_room_is_written_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    log = ValueLog(tmp_path, 1 << 30)
    for i in range(20):
        log.append([payload(i)], [TS + i + 1])
    assert (tmp_path / NAME).stat().st_size == log.end.offset
    assert starts(log) == list(range(20))


def test_bytes_that_end_in_zeros_are_no_room(tmp_path: Path) -> None:
    """TiDB's binlogs end in a zero, and may end in many."""
    log = ValueLog(tmp_path / "a", 1 << 30)
    bodies = [encode_outcome(1, TS + i, TS + i + 1) + b"\x7a\x7f" + bytes(127) for i in range(8)]
    for i, body in enumerate(bodies):
        log.append([body], [TS + i + 1])
    image(log, tmp_path / "a", tmp_path / "b")
    again = ValueLog(tmp_path / "b", 1 << 30)
    again.cut_torn_end(None)
    assert [
        again.read(RecordPointer(0, i * len(encode_record(bodies[0])))) for i in range(8)
    ] == bodies
    assert again.end == log.end


def as_an_original_pump_reads(data: bytes) -> list[bytes]:
    """Record after record; behind what is none, byte by byte to the next magic."""
    found, at = [], 0
    while at + 16 <= len(data):
        magic, size, crc = struct.unpack_from("<IQI", data, at)
        body = data[at + 16 : at + 16 + size] if magic == 0x823A56E8 else b""
        if magic == 0x823A56E8 and len(body) == size and google_crc32c.value(body) == crc:
            found.append(body)
            at += 16 + size
        else:
            at += 1
    return found


def test_an_original_pump_that_goes_on_behind_room_has_all_records_and_so_has_sluice_afterwards(
    tmp_path: Path,
) -> None:
    log = calm(tmp_path / "a")
    left = image(log, tmp_path / "a", tmp_path / "b")
    with left.open("ab") as file:
        file.write(encode_record(payload(8)))
    assert as_an_original_pump_reads(left.read_bytes()) == [
        *(payload(i, 60) for i in range(8)),
        payload(8),
    ]
    again = ValueLog(tmp_path / "b", 1 << 30)
    again.cut_torn_end(RecordPointer(0, 0))
    assert starts(again) == list(range(9))


@settings(max_examples=examples(300))
@example(  # the last header begins 4 bytes before a block's end: magic, then the zeros of the room
    before=[0, 1, 1, 1, 1, 2, 8, 5, 1, 11, 48, 63] + [120] * 9,
    group=[0, 0, 1, 1, 1, 1, 1, 1, 1, 9, 12, 84] + [120] * 8 + [0],
    there=(True, False),
    is_known=False,
)
@given(
    before=st.lists(st.integers(0, 120), min_size=4, max_size=120),
    group=st.lists(st.integers(0, 120), min_size=1, max_size=25),
    there=st.tuples(st.booleans(), st.booleans()),
    is_known=st.booleans(),
)
def test_a_power_cut_in_a_small_append_loses_nothing_before_it_whichever_blocks_reached_the_disk(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[int],
    group: list[int],
    there: tuple[bool, bool],
    is_known: bool,
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    log = ValueLog(folder, 1 << 30)
    last = RecordPointer(0, 0)
    for i, size in enumerate(before):
        [run] = log.append([payload(i, size)], [TS + i + 1])
        last = RecordPointer(0, run.offsets[0])
    data = b"".join(encode_record(payload(1000 + i, size)) for i, size in enumerate(group))[
        :SMALL_WRITE_BYTES
    ]
    end = log.end.offset
    # block by block, as it is in the page cache and may reach the disk
    with (folder / NAME).open("r+b") as file:
        cut = min(len(data), BLOCK_BYTES - end % BLOCK_BYTES)
        for is_there, at, part in zip(
            there, (end, end + cut), (data[:cut], data[cut:]), strict=True
        ):
            if is_there:
                file.seek(at)
                file.write(part)
    again = ValueLog(folder, 1 << 30)
    again.cut_torn_end(last if is_known else None)
    assert starts(again)[: len(before)] == list(range(len(before)))
    assert again.skipped_bytes == 0
    kept = starts(again)[len(before) :]
    # those of the group are there up to one of them
    assert kept == list(range(1000, 1000 + len(kept)))
    again.append([payload(5000)], [TS + 5001])
    assert starts(again) == [*range(len(before)), *kept, 5000]
    assert starts(ValueLog(folder, 1 << 30)) == [*range(len(before)), *kept, 5000]


@pytest.mark.parametrize("behind", [0, 5])
def test_a_header_without_payload_is_no_record_wherever_records_are_read(
    tmp_path: Path, behind: int
) -> None:
    """Its checksum is right: 0 is the CRC-32C of nothing."""
    empty = encode_record(b"")
    assert empty[4:] == bytes(12)
    place = len(encode_record(payload(0)))
    (tmp_path / NAME).write_bytes(
        encode_record(payload(0))
        + empty
        + b"".join(encode_record(payload(1 + i)) for i in range(behind))
        + empty
    )
    log = ValueLog(tmp_path, 1 << 30)
    assert starts(log) == list(range(1 + behind))
    with pytest.raises(CorruptRecordError, match="without payload"):
        log.read(RecordPointer(0, place))
    records, _ = RecordReader(log).read_heads(np.array([0, 0]), np.array([0, place]))
    assert records.offsets.tolist() == [0]
    log.cut_torn_end(None)
    assert starts(log) == list(range(1 + behind))
    assert log.skipped_bytes == (len(empty) if behind else 0)


def test_a_store_that_was_killed_in_calm_traffic_reads_and_goes_on_as_if_it_had_been_closed(
    tmp_path: Path,
) -> None:
    store = Store.open(tmp_path / "a", dataclasses.replace(OPTIONS, segment_limit=1 << 20))
    records = transactions(30)
    for record in records:
        write(store, record)
    settle(store)
    copy_live(tmp_path / "a" / "kv", tmp_path / "b" / "kv")
    shutil.copytree(tmp_path / "a" / "value", tmp_path / "b" / "value")
    assert (tmp_path / "b" / "value" / NAME).stat().st_size > store._log.end.offset
    store.close()
    again = Store.open(tmp_path / "b", OPTIONS)
    more = transactions(10, 30)
    write(again, *more)
    settle(again)
    assert window(again) == paired([*records, *more])
    assert again.stats().skipped_bytes == 0
    again.close()


def test_room_is_for_small_appends_that_keep_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "_STEADY", 64)
    log = ValueLog(tmp_path, 1 << 30)
    for i in range(64):
        log.append([payload(i)], [TS + i + 1])
    assert (tmp_path / NAME).stat().st_size == log.end.offset
    log.append([payload(64)], [TS + 65])
    assert (tmp_path / NAME).stat().st_size > log.end.offset

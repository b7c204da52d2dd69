"""The value log: the original's bytes, rotation, and finding one's way through damage."""

from __future__ import annotations

import os
import struct
import tarfile
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.pump_service.store import scan as scan_module
from sluice.pump_service.store.binlog_head import encode_outcome
from sluice.pump_service.store.errors import CorruptRecordError
from sluice.pump_service.store.segment import RecordPointer, Segment
from sluice.pump_service.store.value_log import ValueLog
from tests.examples import examples

RECORDINGS = Path(__file__).parents[2] / "recordings"
MAGIC = bytes.fromhex("e8563a82")
END_MAGIC = bytes.fromhex("22b93a12")
TS = 470_614_549_921_792_019


def payload(i: int, size: int = 0) -> bytes:
    """A Commit binlog with start_ts TS+i, commit_ts TS+i+1 and `size` bytes of an unknown field."""
    return encode_outcome(1, TS + i, TS + i + 1) + (
        b"\x7a" + _varint(size) + bytes(size) if size else b""
    )


def _varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out + bytes([n]))


def fill(log: ValueLog, payloads: list[bytes], first: int = 0) -> list[RecordPointer]:
    runs = log.append(payloads, [TS + first + i + 1 for i in range(len(payloads))])
    return [RecordPointer(run.fid, offset) for run in runs for offset in run.offsets]


def scanned(log: ValueLog, begin: RecordPointer | None = None) -> list[tuple[int, int, int]]:
    """(fid, offset, start_ts - TS) of everything a scan finds."""
    return [
        (batch.fid, offset, start - TS)
        for batch in log.scan(begin or log.first, log.end)
        for offset, start in zip(batch.offsets.tolist(), batch.starts.tolist(), strict=True)
    ]


def test_a_record_is_magic_length_crc_payload_little_endian(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 1 << 20)
    body = payload(1)
    fill(log, [body])
    crc = google_crc32c.value(body)
    assert (tmp_path / "000000.vlog").read_bytes() == MAGIC + struct.pack(
        "<QI", len(body), crc
    ) + body


def test_crc_is_castagnoli() -> None:
    assert google_crc32c.implementation == "c"
    assert google_crc32c.value(b"123456789") == 0xE3069283


def test_footer_is_max_ts_and_end_magic(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 1 << 20)
    fill(log, [payload(i, 60_000) for i in range(3)])
    size = log.end.offset
    log.close()
    data = (tmp_path / "000000.vlog").read_bytes()
    assert data[size:] == struct.pack("<q", TS + 3) + END_MAGIC


@pytest.mark.parametrize("name", ["types", "ddl", "orphans"])
def test_appending_a_real_pumps_payloads_gives_its_file_byte_for_byte(
    name: str, tmp_path: Path
) -> None:
    with tarfile.open(RECORDINGS / name / "pump-data-dir.tgz") as tar:
        tar.extractall(tmp_path)
    original = tmp_path / "pump" / "value" / "000000.vlog"
    source = Segment(original, 0)
    assert source.sealed
    payloads, stamps = [], []
    for batch in scan_module.scan_segment(source, 0, source.size, pytest.fail):
        for i, offset in enumerate(batch.offsets.tolist()):
            payloads.append(source.read_record(offset))
            stamps.append(int(batch.starts[i] if batch.tps[i] == 0 else batch.commits[i]))
    log = ValueLog(tmp_path / "ours", 500 << 20)
    for i in range(0, len(payloads), 7):
        log.append(payloads[i : i + 7], stamps[i : i + 7])
    log.close()
    assert (tmp_path / "ours" / "000000.vlog").read_bytes() == original.read_bytes()


def test_a_segment_overshoots_its_limit_by_one_record_and_is_sealed(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 1000)
    one = len(payload(0, 200)) + 16
    pointers = fill(log, [payload(i, 200) for i in range(12)])
    per_segment = 1000 // one + 1
    assert [p.fid for p in pointers] == [i // per_segment for i in range(12)]
    assert (tmp_path / "000000.vlog").stat().st_size == per_segment * one + 12
    assert [s.sealed for s in log.segments()][:-1] == [True] * (len(log.segments()) - 1)
    assert [log.read(p) for p in pointers] == [payload(i, 200) for i in range(12)]
    assert [x[2] for x in scanned(log)] == list(range(12))


def test_a_small_segment_stays_open_and_goes_on_after_reopening(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 1 << 20)
    first = fill(log, [payload(i) for i in range(3)])
    log.close()
    again = ValueLog(tmp_path, 1 << 20)
    more = fill(again, [payload(i) for i in range(3, 5)], first=3)
    assert {p.fid for p in first + more} == {0}
    assert again.segments()[0].max_ts == TS + 5
    assert [x[2] for x in scanned(again)] == [0, 1, 2, 3, 4]


def test_a_sealed_last_segment_is_followed_by_a_new_one(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 1 << 20)
    fill(log, [payload(0, 60_000)])
    log.close()
    again = ValueLog(tmp_path, 1 << 20)
    assert again.end == RecordPointer(1, 0)
    assert again.segment(0).max_ts == TS + 1  # type: ignore[union-attr]


def test_max_ts_of_an_unsealed_segment_is_found_again(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 1 << 20)
    fill(log, [payload(i) for i in (5, 9, 2)], first=0)
    again = ValueLog(tmp_path, 1 << 20)
    assert again.segments()[0].max_ts == TS + 10


def test_a_torn_tail_is_kept_skipped_and_counted_once(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 1 << 20)
    fill(log, [payload(i, 100) for i in range(5)])
    path = tmp_path / "000000.vlog"
    whole = path.stat().st_size
    os.truncate(path, whole - 30)
    torn = len(payload(4, 100)) + 16 - 30
    again = ValueLog(tmp_path, 1 << 20)
    assert again.end == RecordPointer(0, whole - 30)
    assert [x[2] for x in scanned(again)] == [0, 1, 2, 3]
    fill(again, [payload(i) for i in (7, 8)])
    assert [x[2] for x in scanned(again)] == [0, 1, 2, 3, 7, 8]
    assert [x[2] for x in scanned(again)] == [0, 1, 2, 3, 7, 8]
    assert again.skipped_bytes == torn


def test_a_flipped_bit_costs_one_record_only(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 1 << 20)
    pointers = fill(log, [payload(i, 100) for i in range(9)])
    path = tmp_path / "000000.vlog"
    data = bytearray(path.read_bytes())
    data[pointers[4].offset + 50] ^= 1
    path.write_bytes(data)
    again = ValueLog(tmp_path, 1 << 20)
    assert [x[2] for x in scanned(again)] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert again.skipped_bytes == len(payload(4, 100)) + 16
    with pytest.raises(CorruptRecordError, match=r"000000\.vlog: offset \d+: checksum mismatch"):
        again.read(pointers[4])


@pytest.mark.parametrize("length", [1 << 62, 1 << 40, 5000, 0, (1 << 64) - 1])
def test_a_wrong_length_does_not_hide_what_follows(length: int, tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 1 << 20)
    pointers = fill(log, [payload(i, 100) for i in range(40)])
    path = tmp_path / "000000.vlog"
    data = bytearray(path.read_bytes())
    data[pointers[3].offset + 4 : pointers[3].offset + 12] = struct.pack("<Q", length)
    path.write_bytes(data)
    again = ValueLog(tmp_path, 1 << 20)
    found = [x[2] for x in scanned(again)]
    assert found == [i for i in range(40) if i != 3]


def test_a_payload_full_of_magics_is_one_record_and_when_broken_hides_nothing(
    tmp_path: Path,
) -> None:
    log = ValueLog(tmp_path, 1 << 20)
    trap = payload(1) + b"\x7a\xc8\x01" + MAGIC * 50
    pointers = fill(log, [payload(0), trap, payload(2)])
    assert [x[2] for x in scanned(log)] == [0, 1, 2]
    path = tmp_path / "000000.vlog"
    data = bytearray(path.read_bytes())
    data[pointers[1].offset + 20] ^= 1
    path.write_bytes(data)
    assert [x[2] for x in scanned(ValueLog(tmp_path, 1 << 20))] == [0, 2]


def test_records_larger_than_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", 1000)
    log = ValueLog(tmp_path, 1 << 20)
    sizes = [0, 3000, 10, 990, 0, 984, 977, 960, 20_000, 5]
    pointers = fill(log, [payload(i, size) for i, size in enumerate(sizes)])
    assert scanned(log) == [(0, p.offset, i) for i, p in enumerate(pointers)]
    path = tmp_path / "000000.vlog"
    data = bytearray(path.read_bytes())
    data[pointers[8].offset + 10_000] ^= 1
    path.write_bytes(data)
    assert [x[2] for x in scanned(ValueLog(tmp_path, 1 << 20))] == [0, 1, 2, 3, 4, 5, 6, 7, 9]


def test_purging_takes_old_sealed_segments_but_never_the_newest(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 100)
    fill(log, [payload(i, 200) for i in range(4)])
    log.rotate_if_full()
    assert [s.fid for s in log.segments()] == [0, 1, 2, 3, 4]
    assert log.purge(TS + 2, 9) == [0, 1]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "000002.vlog",
        "000003.vlog",
        "000004.vlog",
    ]
    assert log.purge(1 << 62, 9) == [2, 3]
    assert log.first == RecordPointer(4, 0)


def test_a_reader_keeps_what_it_reads_while_the_segment_is_purged(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, 100)
    fill(log, [payload(i, 200) for i in range(2)])
    segment = log.segment(0)
    assert segment is not None
    log.purge(1 << 62, 9)
    assert segment.read_record(0) == payload(0, 200)
    with pytest.raises(CorruptRecordError, match="does not exist"):
        log.read(RecordPointer(0, 0))


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=30),
    chunk=st.integers(40, 700),
    damage=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=3),
    cut=st.integers(0, 300),
)
def test_a_scan_finds_exactly_the_undamaged_records(
    sizes: list[int],
    chunk: int,
    damage: list[tuple[int, int]],
    cut: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("scan")
    log = ValueLog(directory, 2000)
    pointers = fill(log, [payload(i, size) for i, size in enumerate(sizes)])
    spans = [
        (p.fid, p.offset, p.offset + 16 + len(payload(i, s)))
        for i, (p, s) in enumerate(zip(pointers, sizes, strict=True))
    ]
    broken = set()
    last = log.end.fid
    for where, xor in damage:
        fid = where % (last + 1)
        path = directory / f"{fid:06d}.vlog"
        data = bytearray(path.read_bytes())
        body = log.segment(fid).size  # type: ignore[union-attr]
        if not body:
            continue
        at = where % body
        data[at] ^= xor
        path.write_bytes(data)
        broken |= {i for i, (f, low, high) in enumerate(spans) if f == fid and low <= at < high}
    final = directory / f"{last:06d}.vlog"
    size = max(0, final.stat().st_size - cut)
    os.truncate(final, size)
    broken |= {i for i, (f, _, high) in enumerate(spans) if f == last and high > size}
    before = scan_module.CHUNK_BYTES
    scan_module.CHUNK_BYTES = chunk
    try:
        found = [x[2] for x in scanned(ValueLog(directory, 2000))]
    finally:
        scan_module.CHUNK_BYTES = before
    # The same byte may have been flipped back and forth: then its record is whole after all.
    assert [i for i in found if i not in broken] == [
        i for i in range(len(sizes)) if i not in broken
    ]
    assert found == sorted(found)

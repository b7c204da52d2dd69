"""The binlogfile format, byte for byte as the original Drainer wrote it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.changes.formats.binlog_file import (
    RECORD_OVERHEAD_BYTES,
    BinlogFileError,
    BinlogFileName,
    DamagedRecordError,
    commit_ts_of,
    encode_record,
    list_files,
    new_name,
    read_file,
    split_records,
)
from tests.examples import examples

CREATE_BANK = bytes.fromhex(
    "04051b1c 2600000000000000 0801 109480e0c98bb5fdc306 2218"
    " 435245415445204441544142415345206062616e6b603b3b 33bddf95"
)


def messages(path: Path, offset: int = 0) -> list[bytes]:
    return [message for _, message in read_file(path, offset)]


def test_a_record_of_the_original_is_encoded_as_it_was() -> None:
    message = CREATE_BANK[12:-4]
    assert encode_record(message) == CREATE_BANK
    assert commit_ts_of(message) == 470614791094272020
    assert message.endswith(b"CREATE DATABASE `bank`;;")


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8))
def test_what_was_written_is_read_back_with_its_offsets(
    tmp_path_factory: pytest.TempPathFactory, written: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("files") / new_name(0)
    path.write_bytes(b"".join(map(encode_record, written)))
    assert messages(path) == written
    ends = [offset for offset, _ in read_file(path)]
    assert [offset for offset, _ in split_records(memoryview(path.read_bytes()))] == ends
    for i, end in enumerate(ends):
        assert messages(path, end) == written[i + 1 :]


def test_a_damaged_record_is_named_with_its_offset(tmp_path: Path) -> None:
    first, second = encode_record(b"one"), encode_record(b"two, which is longer")
    for at in range(len(first), len(first) + len(second)):
        damaged = bytearray(first + second)
        damaged[at] ^= 0x40
        path = tmp_path / new_name(0)
        path.write_bytes(damaged)
        reader = read_file(path)
        assert next(reader)[1] == b"one"
        with pytest.raises(
            DamagedRecordError, match=rf"{path.name}: the record at byte {len(first)} "
        ) as caught:
            list(reader)
        assert caught.value.offset == len(first)


def test_a_header_without_message_is_no_record(tmp_path: Path) -> None:
    """A power cut may leave zeros behind a magic, and 0 is the CRC-32C of nothing."""
    path = tmp_path / new_name(0)
    path.write_bytes(encode_record(b"one") + encode_record(b""))
    reader = read_file(path)
    assert next(reader)[1] == b"one"
    with pytest.raises(DamagedRecordError):
        next(reader)
    with pytest.raises(ValueError, match="no whole record"):
        list(split_records(memoryview(path.read_bytes())))


def test_a_compressed_file_is_read_alike_and_its_end_missed(tmp_path: Path) -> None:
    packed = gzip.compress(encode_record(b"one") + encode_record(b"two"))
    path = tmp_path / f"{new_name(0)}.gz"
    path.write_bytes(packed)
    assert messages(path) == [b"one", b"two"]
    assert messages(path, RECORD_OVERHEAD_BYTES + 3) == [b"two"]
    path.write_bytes(packed[:-9])
    with pytest.raises(BinlogFileError, match="can't be uncompressed"):
        messages(path)


def test_names_are_the_originals() -> None:
    assert new_name(12, 1795253000) == "binlog-0000000000000012-20261121092320"
    assert BinlogFileName.parse("binlog-0000000000000012-20261121092320") == BinlogFileName(12)
    assert BinlogFileName.parse("binlog-0000000000000012-20261121092320.gz") == BinlogFileName(
        12, compressed=True
    )
    assert BinlogFileName.parse("binlog-0000000000000012") == BinlogFileName(12)
    assert BinlogFileName.parse("savepoint") is None
    assert BinlogFileName.parse("binlog-0000000000000012-20261121092320.gz.tmp") is None


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    for index in (3, 4, 6):
        (tmp_path / new_name(index)).touch()
    with pytest.raises(BinlogFileError, match="files are missing"):
        list_files(tmp_path)
    (tmp_path / new_name(5)).touch()
    assert [path.name for path in list_files(tmp_path)] == sorted(
        path.name for path in tmp_path.iterdir()
    )


def test_a_number_given_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "binlog-0000000000000000-20261121092320").touch()
    (tmp_path / "binlog-0000000000000000-20261121092320.gz").touch()
    assert [path.name for path in list_files(tmp_path)] == [
        "binlog-0000000000000000-20261121092320.gz"
    ]
    (tmp_path / "binlog-0000000000000000-20261121092321").touch()
    with pytest.raises(BinlogFileError, match="have the same number"):
        list_files(tmp_path)

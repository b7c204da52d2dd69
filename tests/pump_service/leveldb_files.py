"""Reads a LevelDB database by its files alone, as strictly as goleveldb does: what the pump writes
must pass, and what goleveldb wrote must be understood in the same way.

CURRENT names the manifest; manifest and journal are logs of 32 KiB blocks; tables end in a 48-byte
footer. Integers are little-endian, varints LEB128, checksums masked CRC-32C.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c

TABLE_MAGIC = bytes.fromhex("57fb808b247547db")


@dataclass
class Database:
    """What the files say."""

    entries: dict[bytes, bytes]
    comparator: str = ""
    tables: dict[int, int] = field(default_factory=dict)
    """file number -> level"""
    blocks: dict[int, int] = field(default_factory=dict)
    """compression (0 none, 1 snappy) -> number of blocks"""


def read_database(path: Path) -> Database:
    """Every entry that is not deleted.

    AssertionError or IndexError where a rule of the format is broken.
    """
    current = (path / "CURRENT").read_text()
    assert re.fullmatch(r"MANIFEST-\d{6,}\n", current)
    found = Database({})
    journal = newest = 0
    files: dict[int, tuple[int, int]] = {}
    for record in log_records((path / current.strip()).read_bytes()):
        pos = 0
        while pos < len(record):
            tag, pos = uvarint(record, pos)
            assert tag in (1, 2, 3, 4, 5, 6, 7, 9), f"goleveldb knows no tag {tag}"
            if tag == 1:
                name, pos = _bytes(record, pos)
                found.comparator = name.decode()
            elif tag in (2, 3, 4, 9):
                value, pos = uvarint(record, pos)
                journal = value if tag == 2 else journal
                newest = value if tag == 4 else newest
            else:
                level, pos = uvarint(record, pos)
                assert level < 7
                if tag == 5:
                    _, pos = _bytes(record, pos)
                    continue
                number, pos = uvarint(record, pos)
                if tag == 6:
                    files.pop(number)
                else:
                    size, pos = uvarint(record, pos)
                    smallest, pos = _bytes(record, pos)
                    largest, pos = _bytes(record, pos)
                    assert smallest <= largest
                    files[number] = (level, size)
    versions: dict[bytes, tuple[int, bytes | None]] = {}

    def put(key: bytes, sequence: int, value: bytes | None) -> None:
        if key not in versions or versions[key][0] < sequence:
            versions[key] = (sequence, value)

    for number, (level, size) in files.items():
        data = (path / f"{number:06d}.ldb").read_bytes()
        assert len(data) == size
        found.tables[number] = level
        for key, value in _table(data, found):
            trailer = int.from_bytes(key[-8:], "little")
            assert trailer & 0xFF in (0, 1)
            put(key[:-8], trailer >> 8, value if trailer & 1 else None)
    for log in sorted(path.glob("*.log")):
        if int(log.stem) < journal:
            continue
        for batch in log_records(log.read_bytes()):
            sequence, count = struct.unpack_from("<QI", batch)
            pos = 12
            for i in range(count):
                kind = batch[pos]
                assert kind in (0, 1)
                key, pos = _bytes(batch, pos + 1)
                value = None
                if kind:
                    value, pos = _bytes(batch, pos)
                put(key, sequence + i, value)
            assert pos == len(batch)
    found.entries = {key: value for key, (_, value) in versions.items() if value is not None}
    return found


def uvarint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7


def log_records(data: bytes) -> list[bytes]:
    """The log format: u32 masked CRC-32C of kind and data, u16 length, u8 kind (1 full, 2 first, 3
    middle, 4 last).
    """
    records: list[bytes] = []
    parts: list[bytes] = []
    pos = 0
    while pos + 7 <= len(data):
        if pos % 32768 > 32768 - 7:
            pos += 32768 - pos % 32768
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, pos)
        if kind == 0 and length == 0:
            break
        assert kind in (1, 2, 3, 4)
        assert pos % 32768 + 7 + length <= 32768
        assert crc == _masked(data[pos + 6 : pos + 7 + length])
        assert bool(parts) == (kind in (3, 4))
        parts.append(data[pos + 7 : pos + 7 + length])
        if kind in (1, 4):
            records.append(b"".join(parts))
            parts = []
        pos += 7 + length
    assert not parts
    return records


def _masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _bytes(data: bytes, pos: int) -> tuple[bytes, int]:
    size, pos = uvarint(data, pos)
    assert pos + size <= len(data)
    return data[pos : pos + size], pos + size


def _table(data: bytes, found: Database) -> list[tuple[bytes, bytes]]:
    assert data[-8:] == TABLE_MAGIC
    footer = data[-48:]
    _, pos = uvarint(footer, 0)
    _, pos = uvarint(footer, pos)
    entries = []
    for _, handle in _block(data, *_handle(footer, pos), found):
        entries += _block(data, *_handle(handle, 0), found)
    keys = [(key[:-8], -int.from_bytes(key[-8:], "little")) for key, _ in entries]
    assert keys == sorted(keys)
    return entries


def _handle(data: bytes, pos: int) -> tuple[int, int]:
    offset, pos = uvarint(data, pos)
    size, _ = uvarint(data, pos)
    return offset, size


def _block(data: bytes, offset: int, size: int, found: Database) -> list[tuple[bytes, bytes]]:
    compression = data[offset + size]
    crc = int.from_bytes(data[offset + size + 1 : offset + size + 5], "little")
    assert crc == _masked(data[offset : offset + size + 1])
    assert compression in (0, 1)
    found.blocks[compression] = found.blocks.get(compression, 0) + 1
    raw = data[offset : offset + size]
    block = _unsnap(raw) if compression else raw
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    points = set(struct.unpack_from(f"<{restarts}I", block, end))
    entries, pos, last = [], 0, b""
    while pos < end:
        at = pos
        shared, pos = uvarint(block, pos)
        own, pos = uvarint(block, pos)
        length, pos = uvarint(block, pos)
        assert shared <= len(last) and (at not in points or shared == 0)
        last = last[:shared] + block[pos : pos + own]
        pos += own
        entries.append((last, block[pos : pos + length]))
        pos += length
    assert pos == end
    return entries


def _unsnap(data: bytes) -> bytes:
    """Snappy's block format."""
    size, pos = uvarint(data, 0)
    out = bytearray()
    while pos < len(data):
        tag = data[pos]
        pos += 1
        kind = tag & 3
        if kind == 0:
            length = tag >> 2
            if length >= 60:
                more = length - 59
                length = int.from_bytes(data[pos : pos + more], "little")
                pos += more
            out += data[pos : pos + length + 1]
            pos += length + 1
            continue
        if kind == 1:
            length, back = 4 + (tag >> 2 & 7), (tag >> 5) << 8 | data[pos]
            pos += 1
        else:
            width = 2 if kind == 2 else 4
            length, back = 1 + (tag >> 2), int.from_bytes(data[pos : pos + width], "little")
            pos += width
        assert 0 < back <= len(out)
        for _ in range(length):
            out.append(out[-back])
    assert len(out) == size
    return bytes(out)

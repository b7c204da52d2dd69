"""Read and write TiDB Binlog's binlogfile format: that of Drainer's `file` sink, for its reparo.

A record is a message between a header and a checksum, all little-endian:

    magic 0x1c1b0504 u32 | size u64 | message | CRC-32C of the message u32

A file is a sequence of records, named ``binlog-<index, 16 digits>-<YYYYMMDDhhmmss>``; indexes
count up from 0 without holes. Finished files may be compressed as a whole, as ``<name>.gz``. The
messages begin with their type and their commit timestamp (`tidb/proto/pb_binlog.proto`).
"""

from __future__ import annotations

import gzip
import itertools
import re
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from sluice.errors import SluiceError
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.varint import decode_uvarint

MAGIC = 0x1C1B0504
HEADER = struct.Struct("<IQ")
FOOTER = struct.Struct("<I")
RECORD_OVERHEAD_BYTES = HEADER.size + FOOTER.size
MAX_MESSAGE_BYTES = 2**31 - 1
"""Bytes; protobuf readers take no more."""
COMPRESSED_SUFFIX = ".gz"

_NAME = re.compile(r"binlog-(\d{16})(?:-(\d{14}))?(\.gz)?")
_CHUNK_BYTES = 1 << 20


class BinlogFileError(SluiceError):
    """A binlog file isn't what it should be; names file, offset and a hint."""

    hint = "bring back an undamaged copy of the file, or begin a new folder at an earlier commitTS"


class DamagedRecordError(BinlogFileError):
    """A record is cut off or damaged; `offset` is where it begins, in bytes."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message, offset)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class BinlogFileName:
    """The parts of a binlog file's name."""

    index: int
    compressed: bool = False

    @classmethod
    def parse(cls, name: str) -> BinlogFileName | None:
        """Parse a file's name; None if it is no such name."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), bool(match[3])) if match else None


def new_name(index: int, now: float | None = None) -> str:
    """Return the name of file number `index` begun at `now`.

    `now`: Unix seconds, the present by default; the name has it in UTC.
    """
    return f"binlog-{index:016}-{time.strftime('%Y%m%d%H%M%S', time.gmtime(now))}"


def encode_record(message: bytes) -> bytes:
    """Return a record as it is in a file."""
    return HEADER.pack(MAGIC, len(message)) + message + FOOTER.pack(google_crc32c.value(message))


def commit_ts_of(message: bytes | memoryview) -> int:
    """Return the commit timestamp (TSO) of a message, from its first bytes.

    Raises ValueError if it doesn't begin as one.
    """
    try:
        if message[0] == 0x08 and message[2] == 0x10:
            return decode_uvarint(message, 3)[0]
    except (IndexError, CodecError) as error:
        raise ValueError(
            f"a message is cut off in its header: {bytes(message[:16]).hex()}"
        ) from error
    raise ValueError(f"no binlog message: it begins with {bytes(message[:16]).hex()}")


def list_files(folder: Path) -> list[Path]:
    """Return the binlog files of a folder by index, one an index.

    Of a file and its compressed copy it is the copy, which is only put there whole. Raises
    BinlogFileError when an index is missing or twice there.
    """
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        name = BinlogFileName.parse(path.name)
        if name is None:
            continue
        other = found.get(name.index)
        if other is not None and path.name != other.name + COMPRESSED_SUFFIX:
            raise BinlogFileError(
                f"{folder}: {other.name} and {path.name} have the same number: move the one away"
                " that doesn't belong here"
            )
        found[name.index] = path
    indexes = sorted(found)
    for before, after in itertools.pairwise(indexes):
        if after != before + 1:
            raise BinlogFileError(
                f"{folder}: between {found[before].name} and {found[after].name} files are missing:"
                " bring them back"
            )
    return [found[index] for index in indexes]


def open_file(path: Path) -> BinaryIO | gzip.GzipFile:
    """Return a binlog file for reading, compressed or not."""
    return gzip.open(path, "rb") if path.name.endswith(COMPRESSED_SUFFIX) else path.open("rb")


def read_file(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (offset behind the record, message) of every record from `offset` on.

    Raises DamagedRecordError at the first that is cut off or damaged.
    """
    with open_file(path) as file:
        try:
            if file.seek(offset) < offset:
                raise _damaged_record(path, offset, "is not there: the file is shorter")
            while True:
                head = file.read(HEADER.size)
                if not head:
                    return
                if len(head) < HEADER.size:
                    raise _damaged_record(path, offset, "is cut off in its header")
                magic, size = HEADER.unpack(head)
                # zeros behind a magic satisfy the checksum
                if magic != MAGIC or not 0 < size <= MAX_MESSAGE_BYTES:
                    raise _damaged_record(
                        path, offset, f"begins with {head.hex()}, which is no record's header"
                    )
                message = _read(file, size)
                tail = file.read(FOOTER.size)
                if len(message) < size or len(tail) < FOOTER.size:
                    raise _damaged_record(path, offset, f"of {size} bytes is cut off")
                if FOOTER.unpack(tail)[0] != google_crc32c.value(message):
                    raise _damaged_record(
                        path, offset, f"of {size} bytes doesn't match its checksum"
                    )
                offset += RECORD_OVERHEAD_BYTES + size
                yield offset, message
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _damaged_record(path, offset, f"can't be uncompressed: {error}") from error


def split_records(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset behind the record, message) of the records in `data`, all of them whole.

    Checksums are not looked at.
    """
    offset = 0
    while offset < len(data):
        magic, size = HEADER.unpack_from(data, offset)
        end = offset + RECORD_OVERHEAD_BYTES + size
        if magic != MAGIC or not size or end > len(data):
            raise ValueError(f"no whole record at byte {offset} of {len(data)}")
        yield end, data[offset + HEADER.size : end - FOOTER.size]
        offset = end


def _read(file: BinaryIO | gzip.GzipFile, size: int) -> bytes:
    """Read `size` bytes, or what is left: a size that is garbage must not reserve memory."""
    if size <= _CHUNK_BYTES:
        return file.read(size)
    pieces = []
    while size and (piece := file.read(min(size, _CHUNK_BYTES))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _damaged_record(path: Path, offset: int, what: str) -> DamagedRecordError:
    return DamagedRecordError(f"{path}: the record at byte {offset} {what}", offset)

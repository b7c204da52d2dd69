"""Read and write a segment, a file of the value log: `value/%06d.vlog`.

All little-endian. A segment is records, and, once sealed, a footer.

    record   0  u32  magic 0x823a56e8
             4  u64  payload length n
            12  u32  CRC-32C (Castagnoli) of the payload
            16  n    payload: a binlog.Binlog message, never empty
    footer   0  i64  highest timestamp in the file (commit_ts, of Prewrites without one start_ts)
             8  u32  magic 0x123ab922

A segment is sealed if its last four bytes are the footer's magic.

A header of length 0 and checksum 0 is no record, though 0 is the CRC-32C of no bytes. A write cut
behind a magic leaves such bytes where zeros follow.

In calm traffic the current segment is preallocated with zeros behind its records: a sync that need
not make the file longer waits for the disk once less. A crash leaves these zeros, which the next
start truncates. An original pump scans them for the next record, finds none, and continues behind
them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import weakref
from collections import deque
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from sluice.errors import Signal
from sluice.pump_service.store import failpoints
from sluice.pump_service.store.errors import CorruptRecordError

RECORD_MAGIC = 0x823A56E8
RECORD_MAGIC_BYTES = struct.pack("<I", RECORD_MAGIC)
HEADER = struct.Struct("<IQI")
END_MAGIC = 0x123AB922
FOOTER = struct.Struct("<qI")
WRITE_CHUNK_BYTES = 8 << 20
PREALLOCATED_BYTES = 256 << 10
"""Bytes of zeros written at once."""
SMALL_WRITE_BYTES = BLOCK_BYTES = 4096
"""Largest append into preallocated room.

After a power cut its second block may be there without its first one, as the disk writes them in
any order. So unreadable bytes behind such a hole are at most this many, and are recognized. A
larger append makes the file longer, and then none of it counts before all of it does.
"""
_STEADY = 64
"""Small appends in a row before room is preallocated."""
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_MAX_OPEN_SEALED = 64  # sealed segments
crc32c = google_crc32c.value


class RecordPointer(NamedTuple):
    """Point to a record's beginning; ordered as the records are."""

    fid: int
    offset: int

    def encode(self) -> bytes:
        """Return 12 bytes: u32 fid, i64 offset."""
        return POINTER.pack(self.fid, self.offset)

    @classmethod
    def decode(cls, data: bytes) -> RecordPointer:
        return cls(*POINTER.unpack(data))


POINTER = struct.Struct("<Iq")


def encode_record(payload: bytes) -> bytes:
    """Return header and payload."""
    return HEADER.pack(RECORD_MAGIC, len(payload), crc32c(payload)) + payload


class DiskFullError(Signal, OSError):
    """Report that the disk has no room for an append, or the process no file descriptor.

    Nothing of it is left, so it may be retried later.
    """


class OpenDescriptor:
    """Hold a descriptor and close it with the last reference.

    Raises DiskFullError if none is available.
    """

    __slots__ = ("fd",)

    def __init__(self, path: Path, flags: int) -> None:
        self.fd = -1
        try:
            self.fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno in _DISK_FULL_ERRORS or error.errno in _NO_DESCRIPTORS:
                raise DiskFullError(error.errno, error.strerror, str(path)) from error
            raise

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


_open_sealed: deque[weakref.ref[Segment]] = deque()


class Segment:
    """Represent a segment. Any thread may read; only the value log's writer appends.

    The segment that is appended to stays open. A sealed one is opened when it is read, and the
    `_MAX_OPEN_SEALED` opened last stay open, so descriptors don't grow with the log.
    """

    __slots__ = (
        "__weakref__",
        "_file",
        "_file_size",
        "_small",
        "fid",
        "max_ts",
        "path",
        "purged",
        "sealed",
        "size",
    )

    def __init__(self, path: Path, fid: int, *, create: bool = False) -> None:
        self._file: OpenDescriptor | None = OpenDescriptor(
            path, os.O_RDWR | (os.O_CREAT if create else 0)
        )
        self.path = path
        self.fid = fid
        self.max_ts = 0
        self.size = os.fstat(self._file.fd).st_size
        """Bytes of records, without the footer."""
        self._file_size = self.size
        self._small = 0  # appends in a row
        self.sealed = False
        self.purged = False
        """Set before the file is removed: reads then return nothing."""
        if self.size >= FOOTER.size:
            max_ts, magic = FOOTER.unpack(
                os.pread(self._file.fd, FOOTER.size, self.size - FOOTER.size)
            )
            if magic == END_MAGIC:
                self.sealed, self.max_ts = True, max_ts
                self.size -= FOOTER.size
                self._file = None

    def _open(self) -> OpenDescriptor | None:
        """Return the open file, which the caller must keep referenced.

        None if it has been purged.
        """
        file = self._file
        if file is not None:
            return file
        try:
            file = self._file = OpenDescriptor(self.path, os.O_RDONLY)
        except FileNotFoundError:
            if self.purged:
                return None
            raise
        self._close_others()
        return file

    def close_until_read(self) -> None:
        """Close the file until it is read. Nothing may be appended any more."""
        self._file = None

    def _close_others(self) -> None:
        _open_sealed.append(weakref.ref(self))
        while len(_open_sealed) > _MAX_OPEN_SEALED:
            with contextlib.suppress(IndexError):  # another thread was faster
                old = _open_sealed.popleft()()
                if old is not None:
                    old.close_until_read()

    @property
    def _fd(self) -> int:
        """Return the writer's descriptor."""
        assert self._file is not None
        return self._file.fd

    def pread(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`, fewer at the end of the file, b"" if purged."""
        file = self._open()
        if file is None:
            return b""
        data = os.pread(file.fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]  # Linux reads at most 2 GiB at once
        got = len(data)
        while got < size:
            data = os.pread(file.fd, size - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def write(self, parts: list[bytes], *, in_room: bool = False) -> int:
        """Append the parts and return their bytes.

        Raises DiskFullError if they don't fit; then nothing of them is left. Another OSError leaves
        an unknown part behind. With `in_room` small parts may go into preallocated room, if those
        before them were small, too.
        """
        size = sum(map(len, parts))
        if in_room and size <= SMALL_WRITE_BYTES:
            self._small += 1
            if self._small > _STEADY and self.size + size > self._file_size:
                self._make_room()
        else:
            self.leave_no_room()
        try:
            return self._write_parts(parts)
        except OSError as error:
            if error.errno in _DISK_FULL_ERRORS:
                self._end_at(self.size)
                raise DiskFullError(error.errno, error.strerror, str(self.path)) from error
            raise

    def _make_room(self) -> None:
        try:
            os.posix_fallocate(self._fd, self._file_size, PREALLOCATED_BYTES)
        except OSError:  # no room on the disk, or no fallocate: the file grows as it is written
            self._end_at(self._file_size)
            self._small = 0
        else:
            self._file_size += PREALLOCATED_BYTES

    def leave_no_room(self) -> None:
        """Truncate the file to the end of its records."""
        self._small = 0
        if self._file_size > self.size:
            self._end_at(self.size)

    def _end_at(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._file_size = size

    def _write_parts(self, parts: list[bytes]) -> int:
        written = 0
        group: list[bytes] = []
        size = 0
        for part in parts:
            if group and size + len(part) > WRITE_CHUNK_BYTES:
                written += self._write_all(group, self.size + written)
                group, size = [], 0
            group.append(part)
            size += len(part)
        written += self._write_all(group, self.size + written)
        self.size += written
        self._file_size = max(self._file_size, self.size)
        return written

    def _write_all(self, group: list[bytes], at: int) -> int:
        data = group[0] if len(group) == 1 else b"".join(group)
        if failpoints.due("vlog.torn"):
            os.pwrite(self._fd, data[: len(data) * 2 // 3], at)
            failpoints.run_action("vlog.torn")
        failpoints.hit("vlog.write")
        done = os.pwrite(self._fd, data, at)
        view = memoryview(data)
        while done < len(data):
            done += os.pwrite(self._fd, view[done:], at + done)
        return done

    def sync(self) -> None:
        """Call fdatasync."""
        failpoints.hit("vlog.fsync")
        os.fdatasync(self._fd)

    def seal(self) -> None:
        """Write the footer and sync it; nothing may be appended any more.

        Raises DiskFullError if it doesn't fit.
        """
        failpoints.hit("rotate.before_footer")
        size = self.size
        self.write([FOOTER.pack(self.max_ts, END_MAGIC)])
        self.size = size
        self.sync()
        self.sealed = True
        self._close_others()  # it is sealed now
        failpoints.hit("rotate.after_footer")

    def was_replaced(self) -> bool:
        """Return whether its name now belongs to another file."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        here = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def is_zero(self, begin: int, end: int) -> bool:
        """Return whether these bytes are all zeros, as if never written.

        Reads little more than `PREALLOCATED_BYTES`.
        """
        return end - begin <= PREALLOCATED_BYTES + SMALL_WRITE_BYTES and not self.pread(
            begin, end - begin
        ).strip(b"\0")

    def cut(self, end: int, aside: Path | None) -> None:
        """Truncate an unsealed segment to `end`, after copying the rest to `aside`, if given.

        Both are synced.
        """
        if aside is not None:
            with aside.open("wb") as copy:
                for at in range(end, self.size, WRITE_CHUNK_BYTES):
                    copy.write(self.pread(at, min(WRITE_CHUNK_BYTES, self.size - at)))
                copy.flush()
                os.fsync(copy.fileno())
        self._end_at(end)
        os.fsync(self._fd)
        self.size = end

    def read_record(self, offset: int) -> bytes:
        """Return the payload of the record at `offset`.

        Raises CorruptRecordError if there is none or its CRC is wrong.
        """
        data = self.pread(offset, 4096)
        if len(data) < HEADER.size or offset < 0 or offset >= self.size:
            raise CorruptRecordError(
                str(self.path), offset, f"no record: the records end at {self.size}"
            )
        magic, length, crc = HEADER.unpack_from(data)
        if magic != RECORD_MAGIC:
            raise CorruptRecordError(str(self.path), offset, f"wrong magic {magic:#x}")
        if not length:
            raise CorruptRecordError(str(self.path), offset, "a header without payload")
        if offset + HEADER.size + length > self.size:
            raise CorruptRecordError(
                str(self.path), offset, f"a record of {length} bytes reaches beyond the file's end"
            )
        end = HEADER.size + length
        payload = (
            data[HEADER.size : end]
            if end <= len(data)
            else self.pread(offset + HEADER.size, length)
        )
        if len(payload) != length or crc32c(payload) != crc:
            raise CorruptRecordError(str(self.path), offset, "checksum mismatch")
        return payload

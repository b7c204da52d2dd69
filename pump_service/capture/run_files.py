"""Keep what exceeds memory in temporary files: sorted runs of changes, read back as a stream.

Nothing here is synced. The folder is emptied when a capture starts: it holds only what TiKV sends
again.
"""

from __future__ import annotations

import os
import shutil
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sluice.errors import SluiceError

_HEAD = struct.Struct("<QQBQIII")
_READ_BYTES = 1 << 16
_WRITE_BYTES = 1 << 20
_ENDED, _COMMITTED = -1, (1 << 31) - 1


class RunFileError(SluiceError):
    """Report that a temporary file does not hold what was written to it."""

    hint = (
        "check the disk of the data directory, then start the pump again: it captures these"
        " changes once more"
    )


class RunRecord(NamedTuple):
    """Hold one change in a run. Records compare by commit_ts, start_ts and key first.

    `kind` is PUT or DELETE for a whole change. EXPECTED is a commit whose values are in a spilled
    prewrite; POSSIBLE is one whose values may also have come as a whole change.
    """

    commit_ts: int
    start_ts: int
    key: bytes
    kind: int
    source: int
    value: bytes
    old_value: bytes


PUT, DELETE, EXPECTED, POSSIBLE = range(4)


class RunFolder:
    """Own the temporary files of one capture."""

    def __init__(self, path: Path, spare_bytes: int = 0) -> None:
        """Empty the folder, or create it. Raises OSError.

        `spare_bytes` of its disk are left to others.
        """
        self._spare_bytes = spare_bytes
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700, parents=True)
        self._path = path
        self._numbers = count()

    def new(self) -> Path:
        """Return the path of a file that does not exist yet."""
        return self._path / f"{next(self._numbers):08d}.run"

    def lack(self) -> str:
        """Return that the disk has no room for another file, with figures; "" if it has."""
        free = self.free_bytes()
        if free > self._spare_bytes:
            return ""
        return (
            f"the disk of '{self._path}': {free >> 20} MiB are free, and temporary files are"
            f" written only while more than {self._spare_bytes >> 20} MiB are"
            " (stop-write-at-available-space)"
        )

    def free_bytes(self) -> int:
        """Return the free space of the disk. Raises OSError."""
        figures = os.statvfs(self._path)
        return figures.f_bavail * figures.f_frsize


def write_records(path: Path, records: Iterable[RunRecord]) -> None:
    """Append records to a file. Raises OSError."""
    with path.open("ab", buffering=_WRITE_BYTES) as file:
        _append_records(file, records)


def _append_records(file: BinaryIO, records: Iterable[RunRecord]) -> int:
    written = 0
    pack, write = _HEAD.pack, file.write
    for commit_ts, start_ts, key, kind, source, value, old in records:
        written += 1
        write(pack(commit_ts, start_ts, kind, source, len(key), len(value), len(old)))
        write(key)
        write(value)
        write(old)
    return written


def read_records(path: Path, begin: int, end: int) -> Iterator[RunRecord]:
    """Yield the records between two offsets, `_READ_BYTES` in memory at a time.

    Raises OSError, and RunFileError if the file is shorter.
    """
    with path.open("rb", buffering=_READ_BYTES) as file:
        file.seek(begin)
        size, unpack, read = _HEAD.size, _HEAD.unpack, file.read
        while begin < end:
            head = read(size)
            if len(head) != size:
                raise RunFileError(
                    f"temporary file '{path}' ends within the record at offset {begin}"
                )
            commit_ts, start_ts, kind, source, keys, values, olds = unpack(head)
            body = read(keys + values + olds)
            if len(body) != keys + values + olds:
                raise RunFileError(
                    f"temporary file '{path}' ends within the record at offset {begin}"
                )
            begin += size + len(body)
            cut = keys + values
            yield RunRecord(
                commit_ts, start_ts, body[:keys], kind, source, body[keys:cut], body[cut:]
            )


class SortedRun:
    """Read one sorted run piecemeal: `through(ts)` yields what no earlier call has yielded."""

    def __init__(self, path: Path, records: Iterable[RunRecord]) -> None:
        """Write the records, which are sorted. Raises OSError."""
        self._path = path
        write_records(path, records)
        self._reader = read_records(path, 0, path.stat().st_size)
        self._head = next(self._reader, None)

    @property
    def first_ts(self) -> int:
        """Return the commit_ts of the next record; beyond all timestamps if none is left."""
        return 1 << 64 if self._head is None else self._head.commit_ts

    def through(self, ts: int) -> Iterator[RunRecord]:
        """Yield the records with a commit_ts of at most `ts`."""
        while self._head is not None and self._head.commit_ts <= ts:
            record = self._head
            yield record
            self._head = next(self._reader, None)
        if self._head is None:
            self._path.unlink(missing_ok=True)


class PrewriteFiles:
    """Keep spilled prewrites by start_ts: a file a spill, with each transaction sorted by key."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._files: list[_PrewriteFile] = []
        self.bytes = 0
        """Bytes in files that still hold an open transaction."""

    def __contains__(self, start_ts: int) -> bool:
        return any(file.find(start_ts) is not None for file in self._files)

    def add(self, transactions: Iterable[tuple[int, Iterable[RunRecord]]]) -> None:
        """Write transactions to a file: start_ts, ascending, and records by key. Raises OSError."""
        file = _PrewriteFile(self._folder.new(), transactions)
        self._files.append(file)
        self.bytes += file.begins[-1]

    def read(self, start_ts: int) -> list[Iterator[RunRecord]]:
        """Return a reader of each part of a transaction, oldest first."""
        return [
            read_records(file.path, file.begins[at], file.begins[at + 1])
            for file, at in self._parts(start_ts)
        ]

    def roll_back(self, start_ts: int, count: int = 1) -> None:
        """Count rollbacks of keys; with the last one the transaction is dropped.

        TiKV may send a rollback twice, so it may be dropped early. That is safe where commits
        don't wait: one that came nevertheless would have no prewrite, and be captured again.
        """
        parts = self._parts(start_ts)
        for file, at in parts:
            counted = min(file.left[at], count)
            file.left[at] -= counted
            count -= counted
        if parts and not any(file.left[at] for file, at in parts):
            self.drop(start_ts)

    def keep(self, start_ts: int) -> None:
        """Keep a transaction whatever rollbacks come: one of its keys is committed."""
        for file, at in self._parts(start_ts):
            file.left[at] = _COMMITTED

    def drop(self, start_ts: int) -> None:
        """Forget a transaction; a file without any other is removed."""
        for file, at in self._parts(start_ts):
            if file.end(at):
                self._files.remove(file)
                self.bytes -= file.begins[-1]
                file.path.unlink(missing_ok=True)

    def _parts(self, start_ts: int) -> list[tuple[_PrewriteFile, int]]:
        """Return the files that hold a transaction, oldest first, and its position in each."""
        return [(file, at) for file in self._files if (at := file.find(start_ts)) is not None]


class _PrewriteFile:
    """Index one file by start_ts, in 20 bytes a transaction: there may be millions of them."""

    def __init__(self, path: Path, transactions: Iterable[tuple[int, Iterable[RunRecord]]]) -> None:
        self.path = path
        self._starts = array("Q")
        self.begins = array("Q", [0])
        """Where each transaction begins, and where the last one ends."""
        self.left = array("i")
        """Prewrites of each transaction that haven't been rolled back, _COMMITTED, or _ENDED."""
        with path.open("wb", buffering=_WRITE_BYTES) as file:
            for start_ts, records in transactions:
                self._starts.append(start_ts)
                self.left.append(_append_records(file, records))
                self.begins.append(file.tell())
        self._open = len(self._starts)

    def find(self, start_ts: int) -> int | None:
        """Return the position of a transaction that hasn't ended."""
        at = bisect_left(self._starts, start_ts)
        found = at < len(self._starts) and self._starts[at] == start_ts
        return at if found and self.left[at] != _ENDED else None

    def end(self, at: int) -> bool:
        """End a transaction; return whether it was the last one."""
        self.left[at] = _ENDED
        self._open -= 1
        return not self._open

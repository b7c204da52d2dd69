"""Keep what exceeds memory in temporary files: sorted runs of changes, read back as a stream.

Nothing here is synced. The folder is emptied when a capture starts: it holds only what TiKV sends
again.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from sluice.errors import SluiceError

_HEAD = struct.Struct("<QQBQIII")
_READ_BYTES = 1 << 16
_WRITE_BYTES = 1 << 20
_ROTATE_BYTES = 256 << 20


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

    def __init__(self, path: Path) -> None:
        """Empty the folder, or create it. Raises OSError."""
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700, parents=True)
        self._path = path
        self._numbers = count()

    def new(self) -> Path:
        """Return the path of a file that does not exist yet."""
        return self._path / f"{next(self._numbers):08d}.run"


def write_records(path: Path, records: Iterable[RunRecord]) -> int:
    """Append records to a file; return their number. Raises OSError."""
    written = 0
    with path.open("ab", buffering=_WRITE_BYTES) as file:
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
    """Keep spilled prewrites by start_ts: segments of shared files, each sorted by key."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._segments: dict[int, list[tuple[Path, int, int]]] = {}
        self._unended: dict[int, int] = {}
        """Prewrites of each transaction that haven't been rolled back."""
        self._live: dict[Path, int] = {}
        self._current: Path | None = None
        self.bytes = 0
        """Bytes in segments that are still needed."""

    def __contains__(self, start_ts: int) -> bool:
        return start_ts in self._segments

    def add(self, start_ts: int, records: Iterable[RunRecord]) -> None:
        """Append a sorted segment of one transaction. Raises OSError."""
        path = self._current
        if path is None or (path.exists() and path.stat().st_size > _ROTATE_BYTES):
            path = self._current = self._folder.new()
        begin = path.stat().st_size if path.exists() else 0
        written = write_records(path, records)
        end = path.stat().st_size
        self._unended[start_ts] = self._unended.get(start_ts, 0) + written
        self._segments.setdefault(start_ts, []).append((path, begin, end))
        self._live[path] = self._live.get(path, 0) + 1
        self.bytes += end - begin

    def read(self, start_ts: int) -> list[Iterator[RunRecord]]:
        """Return a reader of each segment of a transaction."""
        return [read_records(*segment) for segment in self._segments.get(start_ts, ())]

    def roll_back(self, start_ts: int) -> None:
        """Count the rollback of a key; with the last one the transaction's segments are dropped.

        TiKV may send a rollback twice, so they may be dropped early. That is safe: a commit that
        came nevertheless would have no prewrite, and be captured again.
        """
        if start_ts in self._unended:
            self._unended[start_ts] -= 1
            if not self._unended[start_ts]:
                self.drop(start_ts)

    def drop(self, start_ts: int) -> None:
        """Forget a transaction; a file without any other is removed."""
        self._unended.pop(start_ts, None)
        for path, begin, end in self._segments.pop(start_ts, ()):
            self.bytes -= end - begin
            self._live[path] -= 1
            if not self._live[path]:
                del self._live[path]
                path.unlink(missing_ok=True)
                if path == self._current:
                    self._current = None

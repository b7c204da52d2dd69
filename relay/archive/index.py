"""The index of a segment: its windows, and where in the log file their changes are.

A `.windows` file is the length of a text (8 bytes, little-endian) and the text as zstd. Its first
line is `{"format", "lo", "hi", "cluster_id", "log", "footer_crc32c", "windows", "crc32c"}`, where
the last is the CRC-32C of all lines that follow. These are two a window: its record, as the relay
log has it, without parts, and `[smallest commit_ts, largest, [band, …]]`, a band being `[[number,
rows, bytes, [table ids]], …]` of its row groups: see `sluice.relay.row_groups`.
"""

from __future__ import annotations

import bisect
import json
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import google_crc32c
import pyarrow as pa

from sluice.relay.archive.segment import ArchiveFile
from sluice.relay.errors import RelayCorruptError
from sluice.relay.format_version import NewerFormatError, newer_format_error
from sluice.relay.json_codec import from_values
from sluice.relay.part_descriptor import Part
from sluice.relay.row_groups import Band, RowGroup, selection
from sluice.relay.storage import Storage
from sluice.relay.window import WindowRecord

__all__ = ["IndexedWindow", "SegmentIndex", "SegmentIndexCache", "read_index", "write_index"]

_FORMAT = 1
_LEVEL = 9
_CODEC = "zstd"
_LENGTH_BYTES = 8
_BOUNDS = re.compile(rb'\{"format":\d+,"lo":(\d+),"hi":(\d+),')
_MAX_CACHED = 4


@dataclass(frozen=True, slots=True)
class IndexedWindow:
    """A window without its part, and the bands that hold its changes."""

    window: WindowRecord
    bands: tuple[Band, ...]
    min_commit_ts: int = 0
    max_commit_ts: int = 0

    def to_lines(self) -> bytes:
        """Return its two lines."""
        bands = [[[g.number, g.rows, g.bytes, list(g.tables)] for g in band] for band in self.bands]
        place = [self.min_commit_ts, self.max_commit_ts, bands]
        return self.window.to_json() + json.dumps(place, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_lines(cls, record: bytes, place: bytes) -> IndexedWindow:
        """Parse what `to_lines` wrote. Raises ValueError."""
        low, high, raw = json.loads(place)
        bands = tuple(
            tuple(RowGroup(n, rows, size, tuple(ids)) for n, rows, size, ids in band)
            for band in raw
        )
        return cls(WindowRecord.from_json(record), bands, low, high)


class _IndexLines(Sequence[IndexedWindow]):
    """The windows of an index whose checksum is right, each parsed at its first use.

    Of tens of thousands of windows a reader uses a few, or one after the other.
    """

    def __init__(self, lines: Sequence[bytes]) -> None:
        """Create the index lines; `lines`: two a window. Raises ValueError."""
        self._lines = lines
        self.bounds = [self._bounds(line) for line in lines[::2]]

    def _bounds(self, record: bytes) -> tuple[int, int]:
        match = _BOUNDS.match(record)
        if match is None:
            raise ValueError("a window's record has no lo and hi")
        return int(match[1]), int(match[2])

    def __len__(self) -> int:
        return len(self.bounds)

    @overload
    def __getitem__(self, number: int) -> IndexedWindow: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[IndexedWindow]: ...
    def __getitem__(self, number: int | slice) -> IndexedWindow | Sequence[IndexedWindow]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        at = range(len(self))[number]
        try:
            return IndexedWindow.from_lines(self._lines[2 * at], self._lines[2 * at + 1])
        except (ValueError, TypeError) as error:
            raise RelayCorruptError(
                f"the archived window that begins at {self.bounds[at][0]}: {error}"
            ) from None


@dataclass(frozen=True, slots=True)
class _Header:
    """The first line of an index; `crc32c` is of the other lines."""

    format: int
    lo: int
    hi: int
    cluster_id: int
    log: str | None
    footer_crc32c: int
    windows: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """All windows of a segment, ascending, without a gap."""

    lo: int
    hi: int
    cluster_id: int
    log: str | None
    """Path of the log file."""
    footer_crc32c: int
    windows: Sequence[IndexedWindow]

    @property
    def bounds(self) -> Sequence[tuple[int, int]]:
        """Return `lo` and `hi` of each window."""
        if isinstance(self.windows, _IndexLines):
            return self.windows.bounds
        return [(entry.window.lo, entry.window.hi) for entry in self.windows]

    def number_of(self, ts: int) -> int:
        """Return the number of the first window with hi > ts, or of all windows if none has."""
        return bisect.bisect_right(self.bounds, ts, key=lambda ends: ends[1])

    def window(self, number: int, tables: frozenset[int] | None = None) -> WindowRecord:
        """Return a window with its part: the row groups with `tables` (ids; None for all)."""
        found = self.windows[number]
        bands = [
            band
            for band in (
                tuple(
                    group for group in band if tables is None or not tables.isdisjoint(group.tables)
                )
                for band in found.bands
            )
            if band
        ]
        if not bands or self.log is None:
            return replace(
                found.window,
                changes=0,
                transactions=found.window.transactions if tables is None else 0,
            )
        groups = [group for band in bands for group in band]
        rows = sum(group.rows for group in groups)
        part = Part(
            path=selection(self.log, bands),
            rows=rows,
            transactions=found.window.transactions,
            bytes=sum(group.bytes for group in groups),
            crc32c=self.footer_crc32c,
            min_commit_ts=found.min_commit_ts,
            max_commit_ts=found.max_commit_ts,
        )
        return replace(found.window, parts=(part,), changes=rows)

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        body = b"".join(window.to_lines() for window in self.windows)
        header: dict[str, Any] = {
            "format": _FORMAT,
            "lo": self.lo,
            "hi": self.hi,
            "cluster_id": self.cluster_id,
            "log": self.log,
            "footer_crc32c": self.footer_crc32c,
            "windows": len(self.windows),
            "crc32c": google_crc32c.value(body),
        }
        text = json.dumps(header, separators=(",", ":")).encode() + b"\n" + body
        packed: bytes = pa.Codec(_CODEC, compression_level=_LEVEL).compress(text, asbytes=True)
        return len(text).to_bytes(_LENGTH_BYTES, "little") + packed

    @classmethod
    def from_bytes(cls, data: bytes) -> SegmentIndex:
        """Parse what `to_bytes` wrote. Strict: raises ValueError."""
        lines = _unpacked(data).split(b"\n")
        raw = json.loads(lines[0])
        if isinstance(raw, dict) and (
            error := newer_format_error("the index", raw.get("format"), _FORMAT)
        ):
            raise error
        header = from_values(_Header, raw, "an index")
        if header.format != _FORMAT:
            raise ValueError(
                f"an index of a format that this version of Sluice doesn't read, it reads {_FORMAT}"
            )
        if google_crc32c.value(b"\n".join(lines[1:])) != header.crc32c:
            raise ValueError("the checksum is wrong: it was damaged or edited")
        if len(lines) != 2 * header.windows + 2:
            raise ValueError(f"{len(lines)} lines for {header.windows} windows")
        index = cls(
            header.lo,
            header.hi,
            header.cluster_id,
            header.log,
            header.footer_crc32c,
            _IndexLines(lines[1:-1]),
        )
        index.check()
        return index

    def check(self) -> None:
        """Check that the windows are the chain from lo to hi. Raises ValueError."""
        at = self.lo
        for lo, hi in self.bounds:
            if lo != at:
                raise ValueError(f"no window begins at {at}")
            at = hi
        if at != self.hi:
            raise ValueError(f"the windows end at {at}, not at {self.hi}")


def _unpacked(data: bytes) -> bytes:
    size = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) <= _LENGTH_BYTES or size > 2**36:
        raise ValueError("it is cut short or damaged")
    try:
        text: bytes = pa.decompress(
            data[_LENGTH_BYTES:], decompressed_size=size, codec=_CODEC, asbytes=True
        )
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise ValueError(f"it can't be unpacked: {error}") from None
    return text


def write_index(storage: Storage, path: str, index: SegmentIndex) -> ArchiveFile:
    """Write an index, durable on return. Raises FileExistsError, OSError."""
    data = index.to_bytes()
    with storage.new_file(path) as sink:
        sink.write(data)
    return ArchiveFile(path, len(data), len(index.windows), google_crc32c.value(data))


def read_index(storage: Storage, file: ArchiveFile) -> SegmentIndex:
    """Return the index of a segment, checked. Raises RelayCorruptError."""
    where = f"archive index {storage.url}/{file.path}"
    hint = (
        "restore the file from a copy; a moment before it, or behind a later snapshot, can be had"
        " without it"
    )
    try:
        data = storage.read(file.path)
    except FileNotFoundError:
        raise RelayCorruptError(f"{where}: the file is missing", hint=hint) from None
    if len(data) != file.bytes or google_crc32c.value(data) != file.crc32c:
        raise RelayCorruptError(
            f"{where}: {len(data)} bytes with CRC-32C {google_crc32c.value(data):#010x}, the"
            f" catalogue has {file.bytes} with {file.crc32c:#010x}",
            hint=hint,
        )
    try:
        return SegmentIndex.from_bytes(data)
    except NewerFormatError as error:
        raise error.at(where) from None
    except (ValueError, TypeError) as error:
        raise RelayCorruptError(f"{where}: {error}", hint=hint) from None


class SegmentIndexCache:
    """Indexes that were read, some of them kept.

    They never change, and several threads may share them.
    """

    def __init__(self, kept: int = _MAX_CACHED) -> None:
        """Create the segment index cache; `kept`: how many."""
        self._max_cached = kept
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], SegmentIndex] = {}

    def of(self, storage: Storage, file: ArchiveFile) -> SegmentIndex:
        """Return the index in a file of an archive. Raises RelayCorruptError."""
        key = (storage.url, file.path)
        with self._lock:
            found = self._found.pop(key, None)
            if found is not None:
                self._found[key] = found  # as the one that was used last
        if found is not None:
            return found
        found = read_index(storage, file)
        with self._lock:
            self._found[key] = found
            while len(self._found) > self._max_cached:
                del self._found[next(iter(self._found))]
        return found

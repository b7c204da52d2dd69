"""A segment: a range of the archive's past, with the files that hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sluice.relay.json_codec import JsonDocument
from sluice.tidb import tso


@dataclass(frozen=True, slots=True)
class ArchiveFile(JsonDocument):
    """A file of the archive: `path` from its root, `bytes` and `crc32c` of the whole file."""

    path: str
    bytes: int
    rows: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class LakeFile(JsonDocument):
    """A file of the lake: changes of one table and schema version on one UTC day (YYYY-MM-DD)."""

    path: str
    bytes: int
    rows: int
    crc32c: int
    schema: str
    table: str
    table_id: int
    schema_version: int
    day: str


@dataclass(frozen=True, slots=True)
class ArchiveSegment(JsonDocument):
    """The range `(lo, hi]` (TSO) of the archive."""

    JSON_NAME: ClassVar = "a segment"
    JSON_COMPLETE: ClassVar = True

    lo: int
    hi: int
    cluster_id: int
    token: str
    """The token of the run that wrote it; part of its files' names."""
    archived_ms: int
    """Unix time in ms."""
    windows: int
    """Number of windows in the index; several of the relay log's may have become one."""
    transactions: int
    changes: int
    schema_version: int
    """TiDB's schema version at hi."""
    binlog_bytes: int
    """Size of the relay log's parts that it was made from."""
    log: ArchiveFile | None
    """None if nothing was changed."""
    index: ArchiveFile
    lake: tuple[LakeFile, ...] = ()
    tables: Mapping[int, int] = field(default_factory=dict)
    """Number of changes of each table, by id, ascending."""

    def __post_init__(self) -> None:
        if not 0 <= self.lo < self.hi:
            raise ValueError(f"the segment ({self.lo}, {self.hi}] is empty or turned round")

    @property
    def day(self) -> str:
        """Return the UTC day that it begins on."""
        return day_of(self.lo)

    @property
    def files(self) -> tuple[ArchiveFile | LakeFile, ...]:
        """Return all of them."""
        return (*((self.log,) if self.log else ()), self.index, *self.lake)

    @property
    def bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.bytes for file in self.files)


def day_of(ts: int) -> str:
    """Return the UTC day of a TSO, as the folders are named: ``2026-11-22``."""
    return tso.to_datetime(ts).strftime("%Y-%m-%d")

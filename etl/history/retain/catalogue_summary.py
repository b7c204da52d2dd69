"""Summarize an archive's days and snapshots: what status and retention need, and small.

A day of 10,000 tables has hundreds of thousands of files, a snapshot the definitions of all tables;
a summary is a hundredth of it. So it can be kept beside them: see
`sluice.etl.history.retain.summaries`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from sluice.etl.changes.formats.table_fallbacks import columns_lacking_in_snapshot
from sluice.etl.history.retain.table_events import ReadStart, TableEvent
from sluice.relay.archive import ArchiveSegment, ArchiveSnapshot
from sluice.relay.archive.catalogue import CatalogueDay
from sluice.relay.json_codec import JsonDocument

__all__ = ["DaySummary", "SegmentSummary", "SnapshotSummary", "changes_of", "owner_of"]


@dataclass(frozen=True, slots=True)
class SegmentSummary(JsonDocument):
    """A segment `(lo, hi]`.

    `files`: path and bytes of its index and its log; `log_bytes`, `lake_bytes`: of all files of
    either. `schema_version`: TiDB's at hi.
    """

    JSON_ARRAY: ClassVar = True

    lo: int
    hi: int
    schema_version: int
    log_bytes: int
    lake_bytes: int
    files: tuple[tuple[str, int], ...]

    @classmethod
    def from_segment(cls, segment: ArchiveSegment) -> Self:
        """Summarize a segment of the catalogue."""
        files = (segment.index, *((segment.log,) if segment.log else ()))
        lake = sum(file.bytes for file in segment.lake)
        paths = tuple((file.path, file.bytes) for file in files)
        return cls(
            segment.lo,
            segment.hi,
            segment.schema_version,
            sum(size for _, size in paths),
            lake,
            paths,
        )


@dataclass(frozen=True, slots=True)
class DaySummary(JsonDocument):
    """A day of the catalogue.

    `follows`: where the segment before its first one ends (TSO), None if the archive begins here.
    `changes`: of each table, by id. `turns`: the table events of DDL, None: they are in its
    segments' indexes.
    """

    JSON_COMPLETE: ClassVar = True

    day: str
    follows: int | None
    segments: tuple[SegmentSummary, ...]
    changes: Mapping[int, int] = field(default_factory=dict)
    turns: tuple[TableEvent, ...] | None = None

    @classmethod
    def from_day(cls, day: CatalogueDay) -> Self:
        """Summarize a day of the catalogue."""
        segments = tuple(map(SegmentSummary.from_segment, day.segments))
        return cls(day.day, day.follows, segments, changes_of(day.segments))


def changes_of(segments: Iterable[ArchiveSegment]) -> dict[int, int]:
    """Return how many changes of each table there are in some segments, by id."""
    found: dict[int, int] = {}
    for segment in segments:
        for table_id, count in segment.tables.items():
            found[table_id] = found.get(table_id, 0) + count
    return found


@dataclass(frozen=True, slots=True)
class SnapshotSummary(JsonDocument):
    """A snapshot as of `ts` (TSO).

    `tables`: names by id; `own_bytes`: of the files in its own folder, `others`: path and bytes of
    those in the folders of older ones; `columns_lacking_in_snapshot`: ids of tables that can't be
    restored from it, as it lacks some of their values.
    """

    id: str
    ts: int
    made_ms: int
    made_from: str
    rows: int
    tables: Mapping[int, str]
    own_bytes: int
    others: Mapping[str, int]
    lacking: frozenset[int] = frozenset()

    @classmethod
    def from_snapshot(cls, snapshot: ArchiveSnapshot) -> Self:
        """Summarize a snapshot's manifest."""
        files = {file.path: file.bytes for table in snapshot.tables for file in table.files}
        others = {path: size for path, size in files.items() if owner_of(path) != snapshot.id}
        tables = {int(table.table["id"]): table.full_name for table in snapshot.tables}
        own = sum(files.values()) - sum(others.values())
        lacks = frozenset(
            int(table.table["id"])
            for table in snapshot.tables
            if columns_lacking_in_snapshot(table)
        )
        return cls(
            snapshot.id,
            snapshot.ts,
            snapshot.made_ms,
            snapshot.made_from,
            snapshot.rows,
            tables,
            own,
            others,
            lacks,
        )

    @property
    def snapshot(self) -> ReadStart:
        """Return where a restore may begin, with the tables that the snapshot holds whole."""
        tables = {i: name for i, name in self.tables.items() if i not in self.lacking}
        return ReadStart(self.ts, tables, self.id)

    @property
    def bytes(self) -> int:
        """Return the bytes of all files that it names."""
        return self.own_bytes + sum(self.others.values())

    @property
    def refers_to(self) -> tuple[str, ...]:
        """Return the ids of older snapshots in whose folders files of this one lie."""
        return tuple(sorted({owner_of(path) for path in self.others}))


def owner_of(path: str) -> str:
    """Return the id of the snapshot in whose folder a file lies."""
    return path.split("/")[1]

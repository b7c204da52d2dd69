"""Collect an archive's inventory for retention and status: chain, table events and snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.history.retain.catalogue_summary import SegmentSummary
from sluice.etl.history.retain.contents import ArchiveContents
from sluice.etl.history.retain.policy import ArchiveInventory
from sluice.etl.history.retain.table_events import ReadStart, TableEvent
from sluice.relay import WindowRecord
from sluice.relay.archive import Archive
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Table

__all__ = ["events_between", "events_of_window", "inventory_of"]

_CREATING_ACTIONS = frozenset(
    {
        Action.CREATE_TABLE,
        Action.CREATE_TABLES,
        Action.CREATE_VIEW,
        Action.CREATE_SEQUENCE,
        Action.TRUNCATE_TABLE,
    }
)
"""Jobs after which a table that wasn't there before is there, without rows."""


def inventory_of(
    archive: Archive, contents: ArchiveContents, snapshots: Iterable[ReadStart], floor_ts: int = 0
) -> ArchiveInventory | None:
    """Return the inventory behind the last hole and `floor_ts`, None if nothing is there.

    Raises RelayCorruptError, OSError.
    """
    segments = [segment for segment in contents.unbroken if segment.hi > floor_ts]
    if not segments:
        return None
    turns = tuple(_events_after(archive, contents, segments[0].lo))
    return ArchiveInventory(segments[0].lo, segments[-1].hi, tuple(snapshots), turns)


def _events_after(
    archive: Archive, contents: ArchiveContents, after_ts: int
) -> Iterator[TableEvent]:
    """Yield the table events of DDL after a moment at which a segment begins."""
    version = -1
    for day in contents.days:
        segments = [segment for segment in day.segments if segment.lo >= after_ts]
        if not segments:
            continue
        if day.turns is None:
            yield from events_between(archive, segments, version)
        else:
            yield from (turn for turn in day.turns if turn.ts > after_ts)
        version = segments[-1].schema_version


def events_between(
    archive: Archive, segments: Iterable[SegmentSummary], version: int
) -> Iterator[TableEvent]:
    """Yield the table events of DDL in segments; `version`: TiDB's schema version before them.

    Only indexes of those are read that leave another version than the one before. Raises
    RelayCorruptError, OSError.
    """
    log = archive.log
    for segment in segments:
        if segment.schema_version != version:
            for window in log.windows(segment.lo, segment.hi):
                yield from events_of_window(window)
        version = segment.schema_version


def events_of_window(window: WindowRecord) -> Iterator[TableEvent]:
    """Yield what a window's DDL did to tables."""
    schema = RecordedSchema.from_window(window)
    timeline = SchemaTimeline(schema)
    for ddl in schema.ddls:
        yield from _events_of_ddl(ddl, timeline.before(ddl))


def _events_of_ddl(ddl: DdlJob, before: Mapping[int, Table]) -> Iterator[TableEvent]:
    tables = ddl.effect.tables
    gone = tuple(table_id for table_id in tables if tables[table_id] is None)
    moved = tuple(table_id for table_id in tables if table_id in before)
    for table_id, table in tables.items():
        if table is None:
            continue
        name = table.full_name
        if ddl.type == Action.EXCHANGE_PARTITION:
            yield TableEvent(ddl.commit_ts, table_id, name, takes=moved or (table_id,))
        elif table_id in before:
            yield TableEvent(ddl.commit_ts, table_id, name)
        elif ddl.type in _CREATING_ACTIONS:
            yield TableEvent(ddl.commit_ts, table_id, name, begins=True)
        else:  # recovered, or under another id than before: (re)partitioned
            yield TableEvent(ddl.commit_ts, table_id, name, takes=gone or (table_id,))
    yield from (TableEvent(ddl.commit_ts, table_id, None) for table_id in gone)

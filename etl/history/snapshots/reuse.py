"""Find tables that are unchanged since an older snapshot.

Their rows are referred to, and not copied again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sluice.etl.changes.formats.table_fallbacks import columns_lacking_in_snapshot
from sluice.relay import RelayLog, WindowRecord
from sluice.relay.archive import Archive, ArchiveSnapshot, SnapshotTable
from sluice.tidb.schema import Table

__all__ = ["changed_tables", "ddl_tables", "ids_of", "landed_windows", "unchanged_tables"]


def unchanged_tables(
    older: ArchiveSnapshot, tables: Iterable[Table], changed: set[int]
) -> dict[str, SnapshotTable]:
    """Return the tables that the older snapshot has unchanged, by full name.

    `changed`: ids of tables and partitions that anything was done to in between. A table that lacks
    values in the older snapshot is read again.
    """
    held = {table.full_name: table for table in older.tables}
    found = {}
    for table in tables:
        before = held.get(table.full_name)
        if before is None or not table.is_base_table or changed & ids_of(table):
            continue
        if Table.from_json(before.table) == table and not columns_lacking_in_snapshot(before):
            found[table.full_name] = before
    return found


def changed_tables(windows: Iterable[WindowRecord], from_ts: int, to_ts: int) -> set[int] | None:
    """Return the ids of tables and partitions that were changed by commits in (from_ts, to_ts].

    Rows or definitions count; perhaps some ids are of changes just before or behind. None if the
    windows can't show it: they begin later, end earlier, or transactions were left out of them.
    """
    found: set[int] = set()
    reached = None
    for window in windows:
        if (window.lo > from_ts if reached is None else window.lo > reached) or window.skipped:
            return None
        reached = window.hi
        found |= set(_changed_ids(window))
    if from_ts == to_ts:
        return set()
    return found if reached is not None and reached >= to_ts else None


def ddl_tables(windows: Iterable[WindowRecord], from_ts: int, to_ts: int) -> set[int] | None:
    """Return ids of the tables that DDL committed in (from_ts, to_ts] touched.

    None if the windows end earlier.
    """
    found: set[int] = set()
    reached = from_ts
    for window in windows:
        reached = window.hi
        for ddl in window.ddls:
            if from_ts < ddl["commit_ts"] <= to_ts:
                found |= set(_ddl_ids(ddl))
    return found if reached >= to_ts else None


def landed_windows(
    archive: Archive, relay: RelayLog, from_ts: int, to_ts: int
) -> Iterator[WindowRecord]:
    """Yield the windows that hold commits in (from_ts, to_ts].

    They are the archive's, and behind its end the relay log's. Raises RelayError.
    """
    reached = from_ts
    for log in (archive.log, relay):
        window = log.find(reached)
        while window is not None and window.lo <= reached < to_ts:
            yield window
            reached = window.hi
            window = log.find(reached)


def ids_of(table: Table) -> set[int]:
    """Return the table's id, and its partitions'."""
    partitions: Sequence[Any] = (table.partition or {}).get("definitions") or ()
    return {table.id, *(int(one["id"]) for one in partitions)}


def _changed_ids(window: WindowRecord) -> Iterator[int]:
    yield from map(int, window.tables)
    yield from window.truncated_tables
    for ddl in window.ddls:
        yield from _ddl_ids(ddl)


def _ddl_ids(ddl: Mapping[str, Any]) -> Iterator[int]:
    for document in ((ddl.get("effect") or {}).get("tables"), ddl.get("before")):
        yield from map(int, document or {})

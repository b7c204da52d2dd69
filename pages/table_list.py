"""List tables as the page shows them: searched, sorted and cut here, or one with its history."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from sluice.etl.history.errors import EmptyHistoryError
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.history.tables import (
    DownstreamTables,
    DownstreamTablesCache,
    TableCatalog,
    TableInfo,
    TableSelection,
    read_table_catalog,
    table_schema_history,
)
from sluice.etl.settings import Downstream
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.upstream_clock import upstream_skew_ms
from sluice.relay.archive import SegmentIndexCache

__all__ = [
    "PAGE_SIZE",
    "history_document",
    "history_log_of",
    "known_tables_and_replica",
    "table_document",
    "tables_document",
]

PAGE_SIZE = 50
_REPLICA_WAIT_S = 0.4
_replicas = DownstreamTablesCache()
_indexes = SegmentIndexCache(16)
"""Indexes of archive segments; they never change."""


def history_log_of(pipeline: NamedPipeline, *, shows_values: bool = True) -> HistoryLog:
    """Open the pipeline's history log. Raises FindError, relay errors."""
    return HistoryLog.open(pipeline.settings, _indexes, shows_values=shows_values)


def known_tables_and_replica(
    pipeline: NamedPipeline,
) -> tuple[TableCatalog, DownstreamTables, float]:
    """Return all tables, what was read of the downstream's, and how far TiDB's clock is ahead."""
    settings = pipeline.settings
    target = settings.target
    replica = (
        _replicas.of(target, _REPLICA_WAIT_S)
        if isinstance(target, Downstream)
        else DownstreamTables()
    )
    return read_table_catalog(settings, replica), replica, upstream_skew_ms(settings)


def tables_document(
    found: TableCatalog, replica: DownstreamTables, ahead_ms: float, wanted: TableSelection
) -> dict[str, Any]:
    """Return a page of the tables, and how many there are of each kind."""
    page, count = found.select(wanted)
    return {
        "tables": [_table_document(table, ahead_ms) for table in page],
        "count": count,
        "all": len(found.tables),
        "differing": sum(table.differs for table in found.tables),
        "unverified": sum(table.verified is None for table in found.tables),
        **_replica_document(replica),
        "errors": dict(found.errors),
    }


def table_document(
    found: TableCatalog, replica: DownstreamTables, ahead_ms: float, name: str
) -> dict[str, Any]:
    """Return one table's document; its `table` is None if nothing is known of it."""
    table = found.named(name)
    return {
        "table": _table_document(table, ahead_ms) if table else None,
        **_replica_document(replica),
        "errors": dict(found.errors),
    }


def history_document(pipeline: NamedPipeline, name: str, until: str) -> dict[str, Any]:
    """Return a table's schema changes, one step back in time from `until` (TSO, "" for now)."""
    try:
        past = history_log_of(pipeline, shows_values=False)
    except EmptyHistoryError:
        nothing = {"through": "0", "complete": True, "changes": [], "columns": None}
        return {"name": name} | nothing
    found = table_schema_history(past, name, int(until or past.last))
    return {
        "name": found.name,
        "through": str(found.through),
        "complete": found.complete,
        "changes": [
            asdict(change) | {"commit_ts": str(change.commit_ts)} for change in found.changes
        ],
        "columns": found.columns,
    }


def _replica_document(replica: DownstreamTables) -> dict[str, Any]:
    return {"read_ms": replica.at_ms, "reading": replica.reading}


def _table_document(table: TableInfo, ahead_ms: float) -> dict[str, Any]:
    count, verified, replica = table.count, table.verified, table.replica
    return {
        "name": table.name,
        "target": table.target,
        "problem": table.problem,
        "rows": replica.rows if replica else None,
        "bytes": replica.bytes if replica else None,
        "there": replica is not None,
        "inserts": count.inserts,
        "updates": count.updates,
        "deletes": count.deletes,
        "changes": table.changes,
        "hours": count.last_hours(time.time_ns() // 1_000_000) if count.hours else [],
        "changed_ts": str(count.last_commit_ts or ""),
        "changed_ms": table.changed_ms(ahead_ms),
        "verified": verified.to_json() | {"ts": str(verified.ts)} if verified else None,
        "differs": table.differs,
    }

"""Tables as the page shows them: a list that is searched, sorted and cut here, and one of them with its past."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from etl.find import Past
from etl.settings import Downstream
from etl.settings.pipelines import NamedPipeline
from etl.tables import KnownTable, KnownTables, Replica, Replicas, Selection, known_tables, schema_past
from relay.archive import Indexes

__all__ = ["PAGE", "history_document", "known", "past_of", "table_document", "tables_document"]

PAGE = 50
_WAIT_S = 0.4
_replicas = Replicas()
_indexes = Indexes(16)
"""Of archives; they never change."""


def past_of(pipeline: NamedPipeline) -> Past:
    """What there is of the past. Raises FindError, relay errors."""
    return Past.of(pipeline.settings, _indexes)


def known(pipeline: NamedPipeline) -> tuple[KnownTables, Replica]:
    """All tables, and what was read of the downstream's."""
    settings = pipeline.settings
    target = settings.target
    replica = _replicas.of(target, _WAIT_S) if isinstance(target, Downstream) else Replica()
    return known_tables(settings, replica), replica


def tables_document(found: KnownTables, replica: Replica, wanted: Selection) -> dict[str, Any]:
    """A page of them, and how many there are of each kind."""
    page, count = found.select(wanted)
    return {
        "tables": [_told(table) for table in page],
        "count": count,
        "all": len(found.tables),
        "differing": sum(table.differs for table in found.tables),
        "unverified": sum(table.verified is None for table in found.tables),
        **_replica(replica),
        "errors": dict(found.errors),
    }


def table_document(found: KnownTables, replica: Replica, name: str) -> dict[str, Any]:
    """One of them; `table` is None if nothing is known of it."""
    table = found.named(name)
    return {"table": _told(table) if table else None, **_replica(replica), "errors": dict(found.errors)}


def history_document(pipeline: NamedPipeline, name: str, until: str) -> dict[str, Any]:
    """What DDL made of a table, a step back in time from `until` (TSO, "" for now)."""
    past = past_of(pipeline)
    found = schema_past(past, name, int(until or past.last))
    return {
        "name": found.name,
        "through": str(found.through),
        "complete": found.complete,
        "changes": [asdict(change) | {"commit_ts": str(change.commit_ts)} for change in found.changes],
        "columns": found.columns,
    }


def _replica(replica: Replica) -> dict[str, Any]:
    return {"read_ms": replica.at_ms, "reading": replica.reading}


def _told(table: KnownTable) -> dict[str, Any]:
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
        "changed_ts": str(count.last_commit_ts or ""),
        "verified": verified.to_json() | {"ts": str(verified.ts)} if verified else None,
        "differs": table.differs,
    }

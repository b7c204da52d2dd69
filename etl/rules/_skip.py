"""DDL that changes nothing downstream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl.rules.filters import Filter
from upstream.history import IGNORED_ACTIONS, Action
from upstream.schema import STATE_DELETE_ONLY

_MEANINGLESS = {
    16: "SHARD_ROW_ID_BITS",
    29: "ADMIN REPAIR TABLE",
    30: "TiFlash replicas",
    39: "AUTO_ID_CACHE",
    40: "AUTO_RANDOM_BASE",
    58: "statistics options",
    65: "TTL",
    66: "TTL",
    67: "TTL",
}


def skip_reason(ddl: Mapping[str, Any], filters: Filter) -> str | None:
    """Why nothing is executed downstream for a DDL; None if something is."""
    kind = int(ddl.get("type") or 0)
    query = str(ddl.get("query") or "").strip().lower()
    if query.startswith("select setval"):
        return "sequence values come with the rows"
    if kind in IGNORED_ACTIONS:
        return f"job type {kind} changes nothing a downstream has"
    if kind in _MEANINGLESS:
        return f"{_MEANINGLESS[kind]} mean nothing downstream"
    if kind in (Action.DROP_COLUMN, Action.DROP_COLUMNS) and int(ddl.get("schema_state") or 0) == STATE_DELETE_ONLY:
        return "DROP COLUMN has only begun"
    effect = ddl.get("effect") or {}
    tables = [t for t in (effect.get("tables") or {}).values() if t]
    schemas = {t["schema_name"] for t in tables} | {s["name"] for s in (effect.get("schemas") or {}).values() if s}
    if not any(filters.wants_schema(name) for name in schemas or {str(ddl.get("schema_name") or "")}):
        return "the schema is filtered out"
    return None

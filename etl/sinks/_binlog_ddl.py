"""Which DDL statements go to sinks that keep statements as text, and as which text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl.rules import REPLACED_BY, Filter, skip_reason

_EVERYTHING = Filter()  # what filters leave out never becomes a step
# SHARD_ROW_ID_BITS, TiFlash replicas, AUTO_ID_CACHE, AUTO_RANDOM_BASE, statistics options, TTL: without meaning in a
# MySQL, but a reader of the file or topic may be a TiDB.
_FOR_TIDB = frozenset({16, 30, 39, 40, 58, 65, 66, 67})


def recorded(ddl: Mapping[str, Any]) -> dict[str, Any] | None:
    """A ddl step's detail with the statement to be written as its query; None if nothing is."""
    if REPLACED_BY in ddl:
        statements = [str(statement).rstrip().rstrip(";") for statement in ddl[REPLACED_BY]]
        return {**ddl, "query": "; ".join(statements)} if statements else None
    kind = int(ddl.get("type") or 0)
    if skip_reason({**ddl, "type": 0} if kind in _FOR_TIDB else ddl, _EVERYTHING) is not None:
        return None
    return dict(ddl)

"""Which DDL statements go to sinks that keep statements as text, and as which text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl.rules import FOR_TIDB_ALONE, REPLACED_BY, Filter, skip_reason
from upstream.ddl_actions import Action

_EVERYTHING = Filter()  # what filters leave out never becomes a step
_FOR_TIDB = FOR_TIDB_ALONE.keys() - {Action.REPAIR_TABLE}  # a reader of the file or topic may be a TiDB


def recorded(ddl: Mapping[str, Any]) -> dict[str, Any] | None:
    """A ddl step's detail with the statement to be written as its query; None if nothing is."""
    if REPLACED_BY in ddl:
        statements = [str(statement).rstrip().rstrip(";") for statement in ddl[REPLACED_BY]]
        return {**ddl, "query": "; ".join(statements)} if statements else None
    kind = int(ddl.get("type") or 0)
    if skip_reason({**ddl, "type": 0} if kind in _FOR_TIDB else ddl, _EVERYTHING) is not None:
        return None
    return dict(ddl)

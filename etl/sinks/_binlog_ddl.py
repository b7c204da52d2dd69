"""Which DDL statements go to sinks that keep statements as text, and as which text."""

from __future__ import annotations

from dataclasses import replace

from etl.rules import FOR_TIDB_ALONE, Filter, skip_reason
from etl.steps import ScopedDdl
from upstream.ddl_actions import Action

_EVERYTHING = Filter()  # what filters leave out never becomes a step
_FOR_TIDB = FOR_TIDB_ALONE.keys() - {Action.REPAIR_TABLE}  # a reader of the file or topic may be a TiDB


def recorded(ddl: ScopedDdl) -> ScopedDdl | None:
    """A ddl step's detail with the statement to be written as its query; None if nothing is."""
    if ddl.replaced_by is not None:
        statements = [statement.rstrip().rstrip(";") for statement in ddl.replaced_by]
        return replace(ddl, query="; ".join(statements)) if statements else None
    told = replace(ddl, type=0) if ddl.type in _FOR_TIDB else ddl
    return ddl if skip_reason(told, _EVERYTHING) is None else None

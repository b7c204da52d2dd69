"""Choose the DDL statements, and their texts, for sinks that keep statements as text."""

from __future__ import annotations

from dataclasses import replace

from sluice.etl.changes.rules import FOR_TIDB_ALONE, Filter, skip_reason
from sluice.etl.changes.steps import ScopedDdl
from sluice.tidb.ddl_actions import Action

_PASS_ALL = Filter()  # what filters leave out never becomes a step
# a reader of the file or topic may be a TiDB
_TIDB_ONLY_ACTIONS = FOR_TIDB_ALONE.keys() - {Action.REPAIR_TABLE}


def with_recorded_statement(ddl: ScopedDdl) -> ScopedDdl | None:
    """Return a ddl step's detail with the statement to be written as its query; None for none."""
    if ddl.replaced_by is not None:
        statements = [statement.rstrip().rstrip(";") for statement in ddl.replaced_by]
        return replace(ddl, query="; ".join(statements)) if statements else None
    plain = replace(ddl, type=0) if ddl.type in _TIDB_ONLY_ACTIONS else ddl
    return ddl if skip_reason(plain, _PASS_ALL) is None else None

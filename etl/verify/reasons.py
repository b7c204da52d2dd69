"""Why a table isn't meant to be downstream what it is upstream, so that it can't be compared."""

from __future__ import annotations

from etl.rules import RouteError
from etl.settings import Settings
from upstream.schema import Table

__all__ = ["why_not"]


def why_not(settings: Settings, table: Table) -> str:
    """In words; "" if it can be compared."""
    filters = settings.filters
    schema, name = table.schema_name, table.name
    if not filters.wants_table(schema, name):
        return f"it isn't replicated: {filters.reason(schema, name)}"
    if filters.ignored_row_kinds(schema, name) or filters.may_keep_rows(schema, name):
        return "[filter] leaves some of its changes out"
    try:
        target = settings.routes.target(schema, name)
    except RouteError as error:
        return str(error)
    return f"it is merged with other tables in {target.schema}.{target.table}" if target.is_merged else ""

"""What goes downstream, under which names: filters and routes."""

from etl.rules._ddl_scope import Scoped, ScopeError, scope_ddl
from etl.rules._digest import rules_digest
from etl.rules._globs import only_tables
from etl.rules._restored import SchemaPattern, exactly
from etl.rules._skip import FOR_TIDB_ALONE, skip_reason
from etl.rules.filters import (
    DDL_EVENTS,
    GROUP_EVENTS,
    OWN_SCHEMAS,
    ROW_EVENTS,
    EventRule,
    Filter,
    NameRule,
    is_internal_table,
)
from etl.rules.name_pattern import PatternError, check, reads_otherwise
from etl.rules.routes import Route, RouteError, Routes, Target
from etl.rules.wanted import Rules

__all__ = [
    "DDL_EVENTS",
    "FOR_TIDB_ALONE",
    "GROUP_EVENTS",
    "OWN_SCHEMAS",
    "ROW_EVENTS",
    "EventRule",
    "Filter",
    "NameRule",
    "PatternError",
    "Route",
    "RouteError",
    "Routes",
    "Rules",
    "SchemaPattern",
    "ScopeError",
    "Scoped",
    "Target",
    "check",
    "exactly",
    "is_internal_table",
    "only_tables",
    "reads_otherwise",
    "rules_digest",
    "scope_ddl",
    "skip_reason",
]

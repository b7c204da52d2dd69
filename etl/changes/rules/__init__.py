"""Decide what goes downstream, under which names: filters and routes."""

from sluice.etl.changes.rules._ddl_scope import ScopeError, ScopeResult, scope_ddl
from sluice.etl.changes.rules._table_selection import SchemaPattern, filter_for_tables, only_tables
from sluice.etl.changes.rules.column_rules import (
    ColumnRule,
    ColumnRuleError,
    left_out_columns,
    renamed_columns,
)
from sluice.etl.changes.rules.filters import (
    DDL_EVENTS,
    GROUP_EVENTS,
    OWN_SCHEMAS,
    ROW_EVENTS,
    EventRule,
    Filter,
    NameRule,
    is_internal_table,
)
from sluice.etl.changes.rules.name_pattern import PatternError, check, reads_otherwise
from sluice.etl.changes.rules.replication_rules import (
    FOR_TIDB_ALONE,
    ReplicationRules,
    rules_digest,
    skip_reason,
)
from sluice.etl.changes.rules.routes import Route, RouteError, Routes, Target
from sluice.etl.changes.rules.row_rules import ALL_KINDS, RowRule, RowRuleError, RowSelection

__all__ = [
    "ALL_KINDS",
    "DDL_EVENTS",
    "FOR_TIDB_ALONE",
    "GROUP_EVENTS",
    "OWN_SCHEMAS",
    "ROW_EVENTS",
    "ColumnRule",
    "ColumnRuleError",
    "EventRule",
    "Filter",
    "NameRule",
    "PatternError",
    "ReplicationRules",
    "Route",
    "RouteError",
    "Routes",
    "RowRule",
    "RowRuleError",
    "RowSelection",
    "SchemaPattern",
    "ScopeError",
    "ScopeResult",
    "Target",
    "check",
    "filter_for_tables",
    "is_internal_table",
    "left_out_columns",
    "only_tables",
    "reads_otherwise",
    "renamed_columns",
    "rules_digest",
    "scope_ddl",
    "skip_reason",
]

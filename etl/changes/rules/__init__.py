"""Decide what goes downstream, under which names: filters and routes.

What decides about a DDL and about rows loads on first use: settings need no Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.changes.rules._table_selection import SchemaPattern, filter_for_tables, only_tables
from sluice.etl.changes.rules.column_rules import (
    NO_HISTORY,
    ColumnRule,
    ColumnRuleError,
    History,
    added_columns,
    left_out_columns,
    renamed_columns,
)
from sluice.etl.changes.rules.computed_columns import ComputedColumn
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
from sluice.etl.changes.rules.history_tables import history_columns, with_history_columns
from sluice.etl.changes.rules.name_pattern import PatternError, check, reads_otherwise
from sluice.etl.changes.rules.replication_rules import (
    FOR_TIDB_ALONE,
    ReplicationRules,
    masks_digest,
    rules_digest,
    skip_reason,
)
from sluice.etl.changes.rules.routes import Route, RouteError, Routes, Target
from sluice.etl.changes.rules.row_rules import ALL_KINDS, RowRule, RowRuleError
from sluice.etl.changes.rules.rule_effects import RecordedRules, rule_differences
from sluice.etl.changes.rules.soft_deletes import commit_time, with_stored_mark
from sluice.etl.changes.rules.source_columns import (
    source_condition,
    with_source_column,
    without_source_column,
)
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.changes.rules._ddl_rule_checks import ScopeError, shown_statement
    from sluice.etl.changes.rules._ddl_scope import ScopeResult, scope_ddl
    from sluice.etl.changes.rules.row_selection import RowSelection

__all__ = [
    "ALL_KINDS",
    "DDL_EVENTS",
    "FOR_TIDB_ALONE",
    "GROUP_EVENTS",
    "NO_HISTORY",
    "OWN_SCHEMAS",
    "ROW_EVENTS",
    "ColumnRule",
    "ColumnRuleError",
    "ComputedColumn",
    "EventRule",
    "Filter",
    "History",
    "NameRule",
    "PatternError",
    "RecordedRules",
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
    "added_columns",
    "check",
    "commit_time",
    "filter_for_tables",
    "history_columns",
    "is_internal_table",
    "left_out_columns",
    "masks_digest",
    "only_tables",
    "reads_otherwise",
    "renamed_columns",
    "rule_differences",
    "rules_digest",
    "scope_ddl",
    "shown_statement",
    "skip_reason",
    "source_condition",
    "with_history_columns",
    "with_source_column",
    "with_stored_mark",
    "without_source_column",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "ScopeError": "sluice.etl.changes.rules._ddl_rule_checks",
        "ScopeResult": "sluice.etl.changes.rules._ddl_scope",
        "scope_ddl": "sluice.etl.changes.rules._ddl_scope",
        "shown_statement": "sluice.etl.changes.rules._ddl_rule_checks",
        "RowSelection": "sluice.etl.changes.rules.row_selection",
    },
)

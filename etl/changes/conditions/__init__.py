"""Parse conditions over rows as people type them in a WHERE, evaluate them, write them as SQL.

The grammar is that of `sluice find --where` and of `[[filter.rows]] where`. The two evaluate it
differently: a search is lenient (`sluice.etl.history.find.condition`), a filter means what the
upstream's SQL means, or is refused (`BoundCondition`).
"""

from sluice.etl.changes.conditions.bound import BoundCondition, ImagePair
from sluice.etl.changes.conditions.like_pattern import match_like
from sluice.etl.changes.conditions.syntax import (
    And,
    ColumnName,
    Comparison,
    ConditionError,
    Constant,
    Is,
    Like,
    Node,
    Not,
    Operand,
    Or,
    column_names,
    parse_condition,
)

__all__ = [
    "And",
    "BoundCondition",
    "ColumnName",
    "Comparison",
    "ConditionError",
    "Constant",
    "ImagePair",
    "Is",
    "Like",
    "Node",
    "Not",
    "Operand",
    "Or",
    "column_names",
    "match_like",
    "parse_condition",
]

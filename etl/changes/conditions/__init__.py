"""Parse conditions over rows as people type them in a WHERE, evaluate them, write them as SQL.

The grammar is that of `sluice find --where` and of `[[filter.rows]] where`, and so is the logic of
unknown values. The two compare values differently: a search is lenient
(`sluice.etl.history.find.condition`), a filter means what the upstream's SQL means, or is refused
(`BoundCondition`).
"""

from sluice.etl.changes.conditions.bound import BoundCondition, ImagePair
from sluice.etl.changes.conditions.evaluation import Holds, Leaves, compile_condition, unknown
from sluice.etl.changes.conditions.like_pattern import match_like
from sluice.etl.changes.conditions.syntax import (
    ColumnName,
    ConditionError,
    Constant,
    Operand,
    column_names,
    parse_condition,
)

__all__ = [
    "BoundCondition",
    "ColumnName",
    "ConditionError",
    "Constant",
    "Holds",
    "ImagePair",
    "Leaves",
    "Operand",
    "column_names",
    "compile_condition",
    "match_like",
    "parse_condition",
    "unknown",
]

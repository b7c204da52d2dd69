"""Parse conditions and expressions over rows as people type them in SQL, and write them as SQL.

The grammar is that of `sluice find --where` and of `[[filter.rows]] where`, and so is the logic of
unknown values. The two compare values differently: a search is lenient
(`sluice.etl.history.find.condition`), a filter means what the upstream's SQL means, or is refused
(`BoundCondition`), and is evaluated here. An expression that computes a column (`BoundValue`) is
bound to a table, and servers evaluate it. What evaluates loads on first use: settings only parse,
and need no Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.changes.conditions.bound_value import BoundValue
from sluice.etl.changes.conditions.syntax import (
    ColumnName,
    ConditionError,
    Constant,
    Operand,
    column_names,
    parse_condition,
)
from sluice.etl.changes.conditions.value_forms import (
    MAX_DECIMAL_DIGITS,
    MAX_DECIMAL_SCALE,
    ValueForm,
)
from sluice.etl.changes.conditions.value_syntax import parse_value, value_columns
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.changes.conditions.bound import BoundCondition, ImagePair
    from sluice.etl.changes.conditions.evaluation import Holds, Leaves, compile_condition, unknown
    from sluice.etl.changes.conditions.like_pattern import match_like

__all__ = [
    "MAX_DECIMAL_DIGITS",
    "MAX_DECIMAL_SCALE",
    "BoundCondition",
    "BoundValue",
    "ColumnName",
    "ConditionError",
    "Constant",
    "Holds",
    "ImagePair",
    "Leaves",
    "Operand",
    "ValueForm",
    "column_names",
    "compile_condition",
    "match_like",
    "parse_condition",
    "parse_value",
    "unknown",
    "value_columns",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "BoundCondition": "sluice.etl.changes.conditions.bound",
        "ImagePair": "sluice.etl.changes.conditions.bound",
        "Holds": "sluice.etl.changes.conditions.evaluation",
        "Leaves": "sluice.etl.changes.conditions.evaluation",
        "compile_condition": "sluice.etl.changes.conditions.evaluation",
        "unknown": "sluice.etl.changes.conditions.evaluation",
        "match_like": "sluice.etl.changes.conditions.like_pattern",
    },
)

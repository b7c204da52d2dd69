"""Parse conditions over rows as people type them in a WHERE, evaluate them, write them as SQL.

The grammar is that of `sluice find --where` and of `[[filter.rows]] where`, and so is the logic of
unknown values. The two compare values differently: a search is lenient
(`sluice.etl.history.find.condition`), a filter means what the upstream's SQL means, or is refused
(`BoundCondition`). What evaluates loads on first use: settings only parse, and need no Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.changes.conditions.syntax import (
    ColumnName,
    ConditionError,
    Constant,
    Operand,
    column_names,
    parse_condition,
)
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.changes.conditions.bound import BoundCondition, ImagePair
    from sluice.etl.changes.conditions.evaluation import Holds, Leaves, compile_condition, unknown
    from sluice.etl.changes.conditions.like_pattern import match_like

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

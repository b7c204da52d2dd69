"""Evaluate the row rules of one table on its changes.

Apart from `sluice.etl.changes.rules.row_rules`, which loads no Arrow: every command reads settings.
"""

from __future__ import annotations

import numpy as np

from sluice.etl.changes.conditions import (
    BoundCondition,
    ConditionError,
    ImagePair,
    parse_condition,
)
from sluice.etl.changes.rules.row_rules import RowRule, RowRuleError
from sluice.relay import INSERT
from sluice.tidb.schema import Column, Table


class RowSelection:
    """The row rules of one table, bound to its columns. Raises RowRuleError."""

    def __init__(self, rules: tuple[RowRule, ...], table: Table) -> None:
        self.rules = rules
        self._bound: list[tuple[RowRule, BoundCondition]] = []
        for rule in rules:
            try:
                self._bound.append((rule, BoundCondition(parse_condition(rule.where), table)))
            except ConditionError as error:
                raise RowRuleError(f"{rule.text} and {table.full_name}: {error}") from error
        self.is_of_rows = all(rule.is_of_rows for rule in rules)
        """True if the downstream has the upstream's rows that meet all conditions."""

    @property
    def columns(self) -> dict[Column, str]:
        """Return the columns that conditions name, each with the first rule that does."""
        found: dict[Column, str] = {}
        for rule, condition in self._bound:
            for column in condition.columns:
                found.setdefault(column, rule.text)
        return found

    def kept(self, kind: int, images: ImagePair, side: str) -> np.ndarray:
        """Return which rows of a side ("old" or "new") of changes of a kind go downstream."""
        found = np.ones(images.count, bool)
        for rule, condition in self._bound:
            if kind in rule.kinds:
                found &= condition.holds(images, side)
        return found

    def sql(self) -> str:
        """Return the condition, as SQL, of the rows that a copy of the table takes.

        A copied row counts as an insert: there is nothing before it.
        """
        parts = [condition.sql() for rule, condition in self._bound if INSERT in rule.kinds]
        return " AND ".join(parts) or "TRUE"

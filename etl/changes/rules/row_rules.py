"""Select the rows of a table that go downstream, by conditions over their columns.

A rule about rows (all operations, no `old.` and `new.`) leaves downstream exactly the upstream's
rows for which its condition is true: a row that moves across the border is an insert or a delete
there. Any other rule is about changes: what it leaves out depends on how a row came to be what it
is, so nothing can compare the downstream with the upstream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.errors import SluiceError
from sluice.etl.changes.conditions import (
    BoundCondition,
    ConditionError,
    ImagePair,
    column_names,
    parse_condition,
)
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_name import fits, full_name

ALL_KINDS = frozenset((INSERT, UPDATE, DELETE))


class RowRuleError(SluiceError, ValueError):
    """A rule that makes no sense for a table's columns; names the rule, the table and the column.

    Without a decision no row of the table may go downstream.
    """

    hint = (
        "change `where` or `tables` of the rule in the settings, or leave the table out by [filter]"
        " ignore-table"
    )


@dataclass(frozen=True, slots=True)
class RowRule:
    """A rule of `[[filter.rows]]`.

    `tables`: globs of full upstream names; `where`: the condition; `kinds`: changes that it is
    about, numbered as in the relay log; `text` names it in messages.
    """

    tables: tuple[str, ...]
    where: str
    kinds: frozenset[int]
    text: str

    def matches(self, schema: str, table: str) -> bool:
        """Return whether the rule is about this table, in any case."""
        name = folded(full_name(schema, table))
        return any(fits(name, folded(glob)) for glob in self.tables)

    @property
    def is_of_rows(self) -> bool:
        """Return whether the rule decides by a row's values alone."""
        sides = (name.side for name in column_names(parse_condition(self.where)))
        return self.kinds == ALL_KINDS and not any(sides)


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

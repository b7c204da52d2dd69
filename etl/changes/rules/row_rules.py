"""Select the rows of a table that go downstream, by conditions over their columns.

A rule about rows (all operations, no `old.` and `new.`) leaves downstream exactly the upstream's
rows for which its condition is true: a row that moves across the border is an insert or a delete
there. Any other rule is about changes: what it leaves out depends on how a row came to be what it
is, so nothing can compare the downstream with the upstream. `row_selection` evaluates them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.errors import SluiceError
from sluice.etl.changes.conditions import column_names, parse_condition
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.folded import folded
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

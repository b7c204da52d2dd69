"""Define a search's query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sluice.relay import DELETE, INSERT, UPDATE
from sluice.relay.json_codec import JsonDocument

ROW_KINDS = {"insert": INSERT, "update": UPDATE, "delete": DELETE}
DDL, DROP = "ddl", "drop"
KINDS = (*ROW_KINDS, DDL, DROP)
"""`drop`: DDL after which rows are gone, such as DROP and TRUNCATE TABLE."""
ResultOrder = Literal["time", "size", "newest"]
GroupBy = Literal["minute", "table", "shape"]
"""`minute`: of the commit, UTC; `shape`: which kinds of changes of which tables a transaction makes
together.
"""


@dataclass(frozen=True, slots=True)
class SearchQuery(JsonDocument):
    """A search among what was committed after `since` through `until` (TSO).

    `tables`: globs of ``schema.table``, none: all; `kinds`: of KINDS, none: all; `where`: see
    `sluice.etl.history.find.condition`; `key`: see `sluice.etl.history.find.key`; `min_rows`: only
    transactions with at least as many row changes that match all of these. `order`: by
    commit timestamp, the oldest or the newest first, or by rows, most first; `limit`: how many
    transactions, and how many DDL, come back. With `group` groups come back in place of
    transactions.
    """

    since: int
    until: int
    tables: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    where: str = ""
    order: ResultOrder = "time"
    limit: int = 100
    key: str = ""
    group: tuple[GroupBy, ...] = ()
    min_rows: int = 1

    @property
    def row_kinds(self) -> frozenset[int]:
        """Return the wanted kinds of row changes, as in PART_SCHEMA."""
        return frozenset(
            number for kind, number in ROW_KINDS.items() if not self.kinds or kind in self.kinds
        )

    @property
    def wants_ddl(self) -> bool:
        """Return whether DDL is wanted; it has no columns or rows that a search could be about."""
        return not (self.where or self.key or self.min_rows > 1) and (
            not self.kinds or DDL in self.kinds or DROP in self.kinds
        )

    @property
    def only_drops(self) -> bool:
        return DROP in self.kinds and DDL not in self.kinds

"""Decide where the changes of very many tables are cut into several downstream transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sluice.relay import DELETE, INSERT, UPDATE

_DOUBLE_COST_TABLES = 2_000
"""Tables in a transaction at which a statement costs about twice what it costs alone.

For each statement MariaDB goes through all tables that its transaction has touched.
"""
_CACHED_TABLES = 2_600
"""Tables from which on what MariaDB goes through is more than the processor's caches hold.

With 10,000 a statement costs 21 times what it costs alone.
"""


@dataclass(slots=True)
class Piece:
    """The changes between two commit steps. `end`: of its tables in the change set."""

    end: int = 0
    changes: int = 0
    counts: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """The changes of each kind by table."""

    def count(self, name: str, counts: Sequence[int]) -> None:
        """Add to a table's counts; `counts`: changes of each kind."""
        inserts, updates, deletes = counts[INSERT], counts[UPDATE], counts[DELETE]
        if inserts or updates or deletes:
            before = self.counts.get(name)
            self.counts[name] = (
                (inserts, updates, deletes)
                if before is None
                else (before[0] + inserts, before[1] + updates, before[2] + deletes)
            )


def split_points(table_ids: np.ndarray, commit_ts: np.ndarray, most: int) -> list[int]:
    """Return the places at which changes, ascending by commit timestamp, are cut.

    They ascend, and each is the first of an upstream transaction, so that what lies between two
    has `most` tables at most, or is one transaction. None where it wouldn't pay: it pays where
    changes are spread over so many tables that they are nearly a statement each.
    """
    rows, tables = len(table_ids), len(np.unique(table_ids))
    # that all of them together take: a table's deletes and its loads
    statements = min(rows, 2 * tables)
    cost = 1 + tables / _DOUBLE_COST_TABLES + (tables / _CACHED_TABLES) ** 2
    if tables < 2 * most or rows > statements * cost:
        return []
    found = []
    ids, begins = table_ids.tolist(), np.flatnonzero(commit_ts[1:] != commit_ts[:-1]) + 1
    touched: set[int] = set()
    begin = 0
    for end in [*begins.tolist(), rows]:
        own = ids[begin:end]
        if touched and len(touched.union(own)) > most:
            found.append(begin)
            touched.clear()
        touched.update(own)
        begin = end
    return found

"""Cut changes of very many tables into several transactions."""

from __future__ import annotations

import numpy as np

_DOUBLE_COST_TABLES = 2_000
"""Tables in a transaction at which a statement costs about twice what it costs alone.

For each statement MariaDB goes through all tables that its transaction has touched.
"""


def split_points(table_ids: np.ndarray, commit_ts: np.ndarray, most: int) -> list[int]:
    """Return the places at which changes, ascending by commit timestamp, are cut.

    They ascend, and each is the first of an upstream transaction, so that what lies between two
    has `most` tables at most, or is one transaction. None where it wouldn't pay: it pays where
    changes are spread over so many tables that they are nearly a statement each.
    """
    rows, tables = len(table_ids), len(np.unique(table_ids))
    # that all of them together take: a table's deletes and its loads
    statements = min(rows, 2 * tables)
    if tables < 2 * most or rows * _DOUBLE_COST_TABLES > statements * (
        _DOUBLE_COST_TABLES + tables
    ):
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

"""Find which part of a table a condition over its key asks for.

A table of which a range is read isn't gone through as a whole.
"""

from __future__ import annotations

from typing import Any

from sluice.devstack.tidb.sql import values
from sluice.devstack.tidb.sql.evaluate import Scope
from sluice.devstack.tidb.sql.parse import Node
from sluice.tidb.codec.row import ROWID_NAME
from sluice.tidb.schema import WHOLE_COLUMN, Table


def key_order(table: Table) -> tuple[str, ...]:
    """Return the columns (lower case) by which rows come in order, () if they don't."""
    if table.is_partitioned:
        return ()
    if table.handle_kind == "heap":
        return (ROWID_NAME.lower(),)
    index = table.primary_index
    if table.handle_column is not None or index is None:
        return tuple(name.lower() for name in table.primary_key)
    whole = all(length == WHOLE_COLUMN for _, _, length in index.columns)
    return tuple(name.lower() for name in table.primary_key) if whole else ()


def key_limits(where: Node | None, scope: Scope, key: tuple[str, ...]) -> tuple[Any, Any]:
    """Return (the lowest, the highest) value the key's first column can have, None: no limit.

    Both as they are ordered.
    """
    low = high = None
    for node in _conjuncts(where) if where is not None and key else ():
        match node:
            case ("compare", mark, ("column", name), ("value", value)) if (
                name.lower() == key[0] and value is not None
            ):
                limit = values.sorter(scope.column(name)[1])(value)
                if mark in (">", ">=", "="):
                    low = limit if low is None else max(low, limit)
                if mark in ("<", "<=", "="):
                    high = limit if high is None else min(high, limit)
            case (
                "or",
                first,
                second,
            ):  # (a > 1 OR (a = 1 AND b > 2)), as keys of several columns are cut
                one, other = key_limits(first, scope, key), key_limits(second, scope, key)
                if one[0] is not None and other[0] is not None:
                    low = min(one[0], other[0]) if low is None else max(low, min(one[0], other[0]))
                if one[1] is not None and other[1] is not None:
                    high = (
                        max(one[1], other[1]) if high is None else min(high, max(one[1], other[1]))
                    )
    return low, high


def _conjuncts(node: Node) -> list[Node]:
    if node[0] == "and":
        return [*_conjuncts(node[1]), *_conjuncts(node[2])]
    return [node]

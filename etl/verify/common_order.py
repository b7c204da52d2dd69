"""Choose bounds of ranges that both servers put in one order.

A range has to hold every row once on either side. Text is ordered by a collation, which two servers
may have in two versions, or by two names. So each is asked how it orders the rows whose keys are
the bounds; those stay that both have in one order. A row may still lie in one range here and in
another there: `sluice.etl.verify.range_compare.merge_ranges` handles that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

from sluice.etl.changes.formats.key_ranges import KeyColumn
from sluice.etl.verify.endpoint import ComparedTable, KeyRange

__all__ = [
    "MAX_BOUNDS",
    "Bound",
    "common_bounds",
    "is_ordered_by_text",
    "keys_in_order",
    "parts_of",
]

MAX_BOUNDS = 500
"""The most keys whose rows one statement asks for."""

Bound = tuple[str, ...]
"""Literals of a key's first columns."""


def is_ordered_by_text(table: ComparedTable) -> bool:
    """Return whether the order of the key depends on a collation."""
    return any(column.kind == "text" for column in table.key)


def thin_bounds(bounds: Sequence[Bound]) -> list[Bound]:
    """Return at most MOST_BOUNDS of them, evenly chosen."""
    step = -(-len(bounds) // MAX_BOUNDS)
    return list(bounds[:: max(step, 1)])


def keys_in_order(table: ComparedTable, source: str, bounds: Sequence[Bound]) -> str:
    """Return the statement for the keys of `bounds` that have a row, in the server's order."""
    names = ", ".join(column.quoted for column in table.key)
    wanted = " OR ".join(f"({_key_equals(table.key, bound)})" for bound in bounds)
    return f"SELECT {names} FROM {source} WHERE {wanted} ORDER BY {names}"


def common_bounds(
    bounds: Sequence[Bound], *orders: Callable[[Sequence[Bound]], Sequence[Bound]]
) -> list[Bound]:
    """Return as many of the bounds as all `orders` have, and have in the order of the first."""
    left = thin_bounds(bounds)
    for order in orders:
        place = {bound: number for number, bound in enumerate(order(left))} if left else {}
        left = _longest_ascending([(place[bound], bound) for bound in left if bound in place])
    return left


def parts_of(within: KeyRange, bounds: Sequence[Bound]) -> list[KeyRange]:
    """Return the range in parts that begin at `bounds`."""
    return [KeyRange(low, high) for low, high in pairwise([within.low, *bounds, within.high])]


def _key_equals(key: Sequence[KeyColumn], bound: Bound) -> str:
    return " AND ".join(
        f"{column.quoted} = {literal}" for column, literal in zip(key, bound, strict=True)
    )


def _longest_ascending(placed: Sequence[tuple[int, Bound]]) -> list[Bound]:
    """Return the longest part whose places ascend."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (place, _) in enumerate(placed):
        at = bisect_left(ends, place)
        before.append(last[at - 1] if at else -1)
        ends[at : at + 1] = [place]
        last[at : at + 1] = [number]
    found: list[Bound] = []
    number = last[-1] if last else -1
    while number >= 0:
        found.append(placed[number][1])
        number = before[number]
    return found[::-1]

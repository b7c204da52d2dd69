"""Which landed windows become one archived window: neighbours that say the same of schemas, so that preparing makes of
the one what it makes of the many. Idle ones cost nothing then.

A window joins others only if it is plain: no DDL inside, no DDL before it that its rows don't know of (`moved`), no
indexes that are enforced no longer (`relaxed`), no rows of tables truncated before. What each of these means depends on
where a window begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relay.window import Window

__all__ = ["Limits", "joined", "runs"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one archived window holds if it has been several, and how much is in memory at a time."""

    changes: int = 200_000
    bytes: int = 64 * 2**20
    """Of the rows, as TiDB wrote them."""


def runs(windows: Iterable[Window], limits: Limits) -> Iterator[list[Window]]:
    """Windows, given as a chain, in stretches of which each becomes one."""
    run: list[Window] = []
    tables: dict[str, Any] = {}
    changes = size = 0
    for window in windows:
        own = _bytes(window)
        fits = changes + window.changes <= limits.changes and size + own <= limits.bytes
        if run and not (fits and _alike(run[-1], window) and _agree(tables, window.tables)):
            yield run
            run, tables, changes, size = [], {}, 0, 0
        run.append(window)
        tables.update(window.tables)
        changes, size = changes + window.changes, size + own
    if run:
        yield run


def _bytes(window: Window) -> int:
    return sum(part.bytes for part in window.parts)


def _alike(one: Window, following: Window) -> bool:
    same = one.schema_version == following.schema_version and one.cluster_id == following.cluster_id
    return same and _is_plain(one) and _is_plain(following)


def _is_plain(window: Window) -> bool:
    return not (window.ddls or window.moved or window.relaxed or window.truncated_tables)


def _agree(tables: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return all(tables[table_id] == others[table_id] for table_id in tables.keys() & others.keys())


def joined(run: Sequence[Window]) -> Window:
    """The record of a stretch that `runs` gave, without parts."""
    first, last = run[0], run[-1]
    return replace(
        first,
        hi=last.hi,
        landed_ms=last.landed_ms,
        transactions=sum(window.transactions for window in run),
        changes=sum(window.changes for window in run),
        parts=(),
        tables={table_id: table for window in run for table_id, table in window.tables.items()},
        timings_ms={},
        skipped=tuple(entry for window in run for entry in window.skipped),
    )

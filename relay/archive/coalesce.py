"""Which landed windows become one archived window: neighbours of which preparing makes the same, together or singly.
So idle ones cost nothing, and rows are compressed together.

A record's tables are as of its window's beginning, and its DDL says what becomes of them. So windows can be one as long
as each one's tables are what those before have left behind; one that says otherwise begins another archived window. A
window stays alone if it names DDL before it that its rows don't know of (`moved`), indexes that are enforced no longer
(`relaxed`), or rows of tables truncated before: what these mean depends on where a window begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from relay.window import Window

__all__ = ["Limits", "joined", "runs", "tables_at"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one archived window holds if it has been several, and how much is in memory at a time."""

    changes: int = 200_000
    bytes: int = 64 * 2**20
    """Of the rows, as TiDB wrote them."""
    joins: bool = True
    """Whether windows become one at all."""


@dataclass(slots=True)
class _Run:
    """Windows that become one, and what they leave behind of tables: by id, None for one that is gone."""

    windows: list[Window]
    tables: dict[str, Any] = field(default_factory=dict)
    changes: int = 0
    bytes: int = 0

    def takes(self, window: Window, limits: Limits) -> bool:
        last = self.windows[-1]
        fits = self.changes + window.changes <= limits.changes and self.bytes + _bytes(window) <= limits.bytes
        return (
            limits.joins
            and fits
            and _can_join(last)
            and _can_join(window)
            and last.cluster_id == window.cluster_id
            and (bool(window.ddls) or last.schema_version == window.schema_version)
            and all(self.tables[i] == table for i, table in window.tables.items() if i in self.tables)
        )

    def add(self, window: Window) -> None:
        self.tables.update(window.tables)
        for ddl in window.ddls:
            self.tables.update(_left_behind(ddl))
        self.changes += window.changes
        self.bytes += _bytes(window)


def runs(windows: Iterable[Window], limits: Limits) -> Iterator[list[Window]]:
    """Windows, given as a chain, in stretches of which each becomes one."""
    run: _Run | None = None
    for window in windows:
        if run is not None and run.takes(window, limits):
            run.windows.append(window)
        else:
            if run is not None:
                yield run.windows
            run = _Run([window])
        run.add(window)
    if run is not None:
        yield run.windows


def _bytes(window: Window) -> int:
    return sum(part.bytes for part in window.parts)


def tables_at(window: Window, ts: int) -> dict[str, Any]:
    """The tables of a window as they are once everything through `ts` (TSO) is committed, by id as in its record."""
    tables = dict(window.tables)
    for ddl in window.ddls:
        if ddl["commit_ts"] <= ts:
            tables |= _left_behind(ddl)
    return tables


def _left_behind(ddl: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tables that a DDL changes as they are then, by id; None for one that is gone."""
    found: Mapping[str, Any] = (ddl.get("effect") or {}).get("tables") or {}
    return found


def _can_join(window: Window) -> bool:
    return not (window.moved or window.relaxed or window.truncated_tables)


def joined(run: Sequence[Window]) -> Window:
    """The record of a stretch that `runs` gave, without parts."""
    first, last = run[0], run[-1]
    tables: dict[str, Any] = {}
    changed: set[str] = set()
    for window in run:
        tables |= {i: table for i, table in window.tables.items() if i not in changed and i not in tables}
        changed |= {i for ddl in window.ddls for i in _left_behind(ddl)}
    return replace(
        first,
        hi=last.hi,
        landed_ms=last.landed_ms,
        transactions=sum(window.transactions for window in run),
        changes=sum(window.changes for window in run),
        schema_version=last.schema_version,
        parts=(),
        tables=tables,
        ddls=tuple(ddl for window in run for ddl in window.ddls),
        timings_ms={},
        skipped=tuple(entry for window in run for entry in window.skipped),
    )

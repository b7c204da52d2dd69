"""Choose which landed windows become one archived window.

They are neighbours that lead to the same plan together or singly. So idle windows cost nothing, and
rows are compressed together.

A record's tables are as of its window's beginning, and its DDL records how they change. So windows
can be joined if each one's tables are those that the windows before have left; a window with others
begins another archived window. A window stays alone if it names DDL before it that its rows don't
have (`moved`), indexes that are no longer enforced (`relaxed`), or rows of tables truncated before:
what these mean depends on where a window begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.relay.window import WindowRecord

__all__ = ["MergeLimits", "merge_groups", "merge_windows"]


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """Limits of an archived window that was several, and of what is in memory at a time."""

    changes: int = 200_000
    bytes: int = 64 * 2**20
    """Bytes of the rows, as TiDB wrote them."""
    joins: bool = True
    """False keeps every window by itself."""


@dataclass(slots=True)
class _MergeGroup:
    """Windows that become one, and the tables after them, by id; None for a dropped one."""

    windows: list[WindowRecord]
    tables: dict[str, Any] = field(default_factory=dict)
    changes: int = 0
    bytes: int = 0

    def takes(self, window: WindowRecord, limits: MergeLimits) -> bool:
        last = self.windows[-1]
        fits = (
            self.changes + window.changes <= limits.changes
            and self.bytes + _bytes(window) <= limits.bytes
        )
        return (
            limits.joins
            and fits
            and _can_merge(last)
            and _can_merge(window)
            and last.cluster_id == window.cluster_id
            and (bool(window.ddls) or last.schema_version == window.schema_version)
            and all(
                self.tables[i] == table for i, table in window.tables.items() if i in self.tables
            )
        )

    def add(self, window: WindowRecord) -> None:
        self.tables.update(window.tables)
        for ddl in window.ddls:
            self.tables.update(_tables_after(ddl))
        self.changes += window.changes
        self.bytes += _bytes(window)


def merge_groups(
    windows: Iterable[WindowRecord], limits: MergeLimits
) -> Iterator[list[WindowRecord]]:
    """Group a chain of windows; each group becomes one window."""
    run: _MergeGroup | None = None
    for window in windows:
        if run is not None and run.takes(window, limits):
            run.windows.append(window)
        else:
            if run is not None:
                yield run.windows
            run = _MergeGroup([window])
        run.add(window)
    if run is not None:
        yield run.windows


def _bytes(window: WindowRecord) -> int:
    return sum(part.bytes for part in window.parts)


def _tables_after(ddl: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tables that a DDL changes, as of after it, by id; None for one that is gone."""
    found: Mapping[str, Any] = (ddl.get("effect") or {}).get("tables") or {}
    return found


def _can_merge(window: WindowRecord) -> bool:
    return not (window.moved or window.relaxed or window.truncated_tables)


def merge_windows(run: Sequence[WindowRecord]) -> WindowRecord:
    """Return one record for a run of windows from `merge_groups`, without parts."""
    first, last = run[0], run[-1]
    tables: dict[str, Any] = {}
    changed: set[str] = set()
    for window in run:
        tables |= {
            i: table for i, table in window.tables.items() if i not in changed and i not in tables
        }
        changed |= {i for ddl in window.ddls for i in _tables_after(ddl)}
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
        is_captured=any(window.is_captured for window in run),
    )

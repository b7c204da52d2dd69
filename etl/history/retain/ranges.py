"""Compute the range in which each table can be restored.

Pure, like `sluice.etl.history.retain.table_events`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sluice.etl.history.retain.policy import ArchiveInventory
from sluice.etl.history.retain.table_events import ReadStart, restorable_since

__all__ = ["TableRange", "table_ranges"]


@dataclass(frozen=True, slots=True)
class TableRange:
    """A table that can be restored as of any moment from `from_ts` (TSO) on.

    Until `until_ts`, when it was dropped; None: it exists. `snapshot`: the oldest one that holds
    it; "" if it is known since it was created, or came back.
    """

    name: str
    from_ts: int
    until_ts: int | None
    snapshot: str


def table_ranges(facts: ArchiveInventory, *, is_whole: bool = True) -> list[TableRange]:
    """Return every table that can be restored at some moment, by name and time.

    One that TRUNCATE or PARTITION BY gave another id is one table. `is_whole`: a restore may begin
    where the chain does.
    """
    found: list[TableRange] = []
    for life in sorted(
        _id_ranges(facts, is_whole=is_whole), key=lambda life: (life.name, life.from_ts)
    ):
        before = found[-1] if found else None
        if before is not None and (before.name, before.until_ts) == (life.name, life.from_ts):
            found[-1] = replace(before, until_ts=life.until_ts)
        else:
            found.append(life)
    return found


def _id_ranges(facts: ArchiveInventory, *, is_whole: bool) -> Iterator[TableRange]:
    """Yield the restorable range of each table id."""
    first: dict[int, tuple[int, str]] = {}
    names: dict[int, str] = {}
    starts = [
        *((ReadStart(facts.lo),) if is_whole else ()),
        *(snapshot for snapshot in facts.snapshots if facts.lo <= snapshot.ts <= facts.hi),
    ]
    for start in starts:
        for table_id, (since, name) in restorable_since(start, facts.turns, facts.hi).items():
            snapshot = start.id if table_id in start.tables else ""
            if table_id not in first or since < first[table_id][0]:
                first[table_id] = (since, snapshot)
            names[table_id] = name
    gone: dict[int, int | None] = {}
    for turn in facts.turns:
        gone[turn.table_id] = turn.ts if turn.name is None else None
    for table_id, (since, snapshot) in first.items():
        until = gone.get(table_id)
        if until is None or until > since:
            yield TableRange(names[table_id], since, until, snapshot)

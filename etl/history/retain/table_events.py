"""Find where a table's rows can be restored from, by snapshots and table events.

That is a snapshot that holds them, or the archive's chain since the table was created. Pure: knows
snapshots by their tables' ids, and what DDL did to ids, in order. A table that TRUNCATE, PARTITION
BY or EXCHANGE PARTITION gave another id is followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sluice.relay.json_codec import JsonDocument

__all__ = [
    "ReadStart",
    "RestoreStart",
    "TableEvent",
    "apply_event",
    "restorable_at",
    "restorable_since",
]


@dataclass(frozen=True, slots=True)
class TableEvent(JsonDocument):
    """The effect of one DDL at `ts` (TSO) on one table id.

    `name` is its `schema.table` afterwards, None if it is gone. `begins`: it came to be, without
    rows. Otherwise its rows are known afterwards if those of all ids of `takes` were known before;
    with none, its rows are what they were.
    """

    JSON_ARRAY: ClassVar = True

    ts: int
    table_id: int
    name: str | None
    begins: bool = False
    takes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadStart:
    """A place where reading may begin: all rows of `tables` (name by id) as of `ts`.

    Without `id` it is where the chain begins, of which no table is known.
    """

    ts: int
    tables: Mapping[int, str] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class RestoreStart:
    """The start from which a table can be restored.

    The snapshot `snapshot`, "" for none, and the chain from `needs_ts` (TSO) on.
    """

    name: str
    needs_ts: int
    snapshot: str


def restorable_at(
    start: ReadStart, turns: Iterable[TableEvent], moment: int
) -> dict[int, RestoreStart]:
    """Return the tables that can be restored at `moment` by reading from `start`, by id.

    They exist at `moment`, or were dropped before and come back later. `turns` ascend by ts.
    """
    alive = {
        table_id: RestoreStart(name, start.ts, start.id) for table_id, name in start.tables.items()
    }
    gone: dict[int, RestoreStart] = {}
    later: set[int] = set()
    for turn in turns:
        if turn.ts > moment:
            later.update(turn.takes)
        elif turn.ts > start.ts:
            apply_event(alive, gone, turn)
    return {i: gone[i] for i in later & gone.keys()} | alive


def restorable_since(
    start: ReadStart, turns: Sequence[TableEvent], until: int
) -> dict[int, tuple[int, str]]:
    """Return the first restorable moment (TSO) and the last name of each table, by id.

    The tables are those that can be restored by reading from `start`, at any moment through
    `until`.
    """
    since = {table_id: (start.ts, name) for table_id, name in start.tables.items()}
    alive = {
        table_id: RestoreStart(name, start.ts, start.id) for table_id, name in start.tables.items()
    }
    gone: dict[int, RestoreStart] = {}
    for turn in turns:
        if start.ts < turn.ts <= until:
            apply_event(alive, gone, turn)
            if (origin := alive.get(turn.table_id)) is not None:
                since[turn.table_id] = (since.get(turn.table_id, (turn.ts, ""))[0], origin.name)
    return since


def apply_event(
    alive: dict[int, RestoreStart], gone: dict[int, RestoreStart], turn: TableEvent
) -> None:
    """Apply one event to the ranges.

    Rows of dropped tables are remembered: RECOVER TABLE brings them back.
    """
    before = alive.pop(turn.table_id, None)
    if turn.name is None:
        if before is not None:
            gone[turn.table_id] = before
    elif turn.begins:
        alive[turn.table_id] = RestoreStart(turn.name, turn.ts - 1, "")
    elif not turn.takes:
        if before is not None:
            alive[turn.table_id] = RestoreStart(turn.name, before.needs_ts, before.snapshot)
    else:
        found = [
            before if i == turn.table_id and before else alive.get(i) or gone.get(i)
            for i in turn.takes
        ]
        if (made := _combined_start(found, turn.name)) is not None:
            alive[turn.table_id] = made


def _combined_start(found: Sequence[RestoreStart | None], name: str) -> RestoreStart | None:
    """Return what it takes to restore rows that come from several tables.

    None if one of them can't be restored.
    """
    there = [origin for origin in found if origin is not None]
    if len(there) < len(found):
        return None
    first = min(there, key=lambda origin: origin.needs_ts)
    snapshot = next((origin.snapshot for origin in there if origin.snapshot), "")
    return RestoreStart(name, first.needs_ts, snapshot)

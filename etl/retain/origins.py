"""From where a table's rows can be had: a base that holds them, or the archive's chain since the table was created.

Pure: knows bases by their tables' ids, and what DDL did to ids, in order. A table that TRUNCATE, PARTITION BY or
EXCHANGE PARTITION gave another id is followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Origin", "Snapshot", "Turn", "known_at", "known_since"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one DDL at `ts` (TSO) did to one table id. `name` is its `schema.table` afterwards, None if it is gone.
    `begins`: it came to be, without rows. Otherwise its rows are known afterwards if those of all ids of `takes` were
    known before; with none, its rows are what they were.
    """

    ts: int
    table_id: int
    name: str | None
    begins: bool = False
    takes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where reading may begin: all rows of `tables` (name by id) as of `ts`. Without `id` it is where the chain begins,
    of which no table is known.
    """

    ts: int
    tables: Mapping[int, str] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """What it takes to have a table: the snapshot `base`, "" for none, and the chain from `needs_ts` (TSO) on."""

    name: str
    needs_ts: int
    base: str


def known_at(start: Snapshot, turns: Iterable[Turn], moment: int) -> dict[int, Origin]:
    """The tables that are there at `moment`, or were dropped before and come back later, and can be had by reading from
    `start`, by id. `turns` ascend by ts.
    """
    alive = {table_id: Origin(name, start.ts, start.id) for table_id, name in start.tables.items()}
    gone: dict[int, Origin] = {}
    later: set[int] = set()
    for turn in turns:
        if turn.ts > moment:
            later.update(turn.takes)
        elif turn.ts > start.ts:
            _take(alive, gone, turn)
    return {i: gone[i] for i in later & gone.keys()} | alive


def known_since(start: Snapshot, turns: Sequence[Turn], until: int) -> dict[int, tuple[int, str]]:
    """For each table id that can be had by reading from `start`, at any moment through `until`: the first moment (TSO),
    and its last name.
    """
    since = {table_id: (start.ts, name) for table_id, name in start.tables.items()}
    alive = {table_id: Origin(name, start.ts, start.id) for table_id, name in start.tables.items()}
    gone: dict[int, Origin] = {}
    for turn in turns:
        if start.ts < turn.ts <= until:
            _take(alive, gone, turn)
            if (origin := alive.get(turn.table_id)) is not None:
                since[turn.table_id] = (since.get(turn.table_id, (turn.ts, ""))[0], origin.name)
    return since


def _take(alive: dict[int, Origin], gone: dict[int, Origin], turn: Turn) -> None:
    """Have the turn happen. Rows of dropped tables are remembered: RECOVER TABLE brings them back."""
    before = alive.pop(turn.table_id, None)
    if turn.name is None:
        if before is not None:
            gone[turn.table_id] = before
    elif turn.begins:
        alive[turn.table_id] = Origin(turn.name, turn.ts - 1, "")
    elif not turn.takes:
        if before is not None:
            alive[turn.table_id] = Origin(turn.name, before.needs_ts, before.base)
    else:
        found = [before if i == turn.table_id and before else alive.get(i) or gone.get(i) for i in turn.takes]
        if (made := _together(found, turn.name)) is not None:
            alive[turn.table_id] = made


def _together(found: Sequence[Origin | None], name: str) -> Origin | None:
    """What it takes to have rows that come from several tables; None if one of them can't be had."""
    there = [origin for origin in found if origin is not None]
    if len(there) < len(found):
        return None
    first = min(there, key=lambda origin: origin.needs_ts)
    base = next((origin.base for origin in there if origin.base), "")
    return Origin(name, first.needs_ts, base)

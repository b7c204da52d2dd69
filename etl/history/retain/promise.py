"""Compute the moments as of which every table can be restored.

Pure. A restore's planner asks `ArchivePromise.lacking` what its start lacks, and `ranges` goes
through the same answers: what is promised is what a restore accepts. Tables count that the settings
want.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sluice.etl.history.retain.policy import ArchiveInventory
from sluice.etl.history.retain.table_events import (
    ReadStart,
    RestoreStart,
    TableEvent,
    apply_event,
)
from sluice.relay.json_codec import JsonDocument
from sluice.tidb.folded import folded
from sluice.tidb.history import SYSTEM_SCHEMAS
from sluice.tidb.table_name import TableName

__all__ = ["ArchivePromise", "ExistenceEvidence", "PromisedRange"]


@dataclass(frozen=True, slots=True)
class PromisedRange(JsonDocument):
    """Moments from `from_ts` through `until_ts` (TSO), all of which can be restored whole."""

    JSON_COMPLETE: ClassVar = True

    from_ts: int
    until_ts: int


@dataclass(frozen=True, slots=True)
class ExistenceEvidence:
    """What shows that tables existed, beside the events of the chain.

    `changed`: by table id, where the last day ends (TSO) that has changes of it. `held`: each
    snapshot's ts and ids, those of tables that can't be restored from it, too. `later`: table
    events behind the chain, through the last snapshot. `names`: by id. `is_whole`: nothing is
    missing before the chain, so a restore may begin where it begins.
    """

    changed: Mapping[int, int] = field(default_factory=dict)
    held: Sequence[tuple[int, frozenset[int]]] = ()
    later: Sequence[TableEvent] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    is_whole: bool = True


class ArchivePromise:
    """What an archive promises: as of which moments a restore has every table."""

    def __init__(
        self,
        facts: ArchiveInventory,
        evidence: ExistenceEvidence,
        wanted: Callable[[str, str], bool] = lambda schema, table: True,
    ) -> None:
        """Take what is known; `wanted`: whether a table (schema, table) counts."""
        self._facts = facts
        self._evidence = evidence
        self._is_wanted: dict[str, bool] = {}
        self._wants = wanted
        self._turns = [turn for turn in facts.turns if not _is_of_system(turn.name)]
        self._of_id: defaultdict[int, list[TableEvent]] = defaultdict(list)
        for turn in (*self._turns, *evidence.later):
            self._of_id[turn.table_id].append(turn)
        self._last_held: dict[int, int] = {}
        for ts, ids in evidence.held:
            for table_id in ids:
                self._last_held[table_id] = max(ts, self._last_held.get(table_id, 0))
        # Most tables have no events: what follows is done for each start, so they cost little.
        self._moving = {i for turn in self._turns for i in (turn.table_id, *turn.takes)}
        self._still = [
            (self._shown_through(table_id), table_id, name)
            for table_id in (evidence.changed.keys() | self._last_held.keys()) - self._of_id.keys()
            if (name := evidence.names.get(table_id)) is not None and self._wanted(name)
        ]

    def starts(self, moment: int) -> Iterator[ReadStart]:
        """Yield the places where a restore as of `moment` (TSO) may begin, the latest first."""
        held = [one for one in self._facts.snapshots if self._facts.lo <= one.ts <= moment]
        yield from sorted(held, key=lambda one: (one.ts, one.id), reverse=True)
        if self._evidence.is_whole:
            yield ReadStart(self._facts.lo)

    def lacking(self, start: ReadStart, moment: int) -> dict[int, str]:
        """Return the tables that exist at `moment`, and whose rows aren't known from `start`.

        By id, their names. `moment` is at most the chain's end.
        """
        found: dict[int, str] = {}
        for ts, _, lost in self._walk(start):
            if ts > moment:
                break
            found = dict(lost)
        return found

    def lacking_at(self, moment: int) -> tuple[ReadStart | None, dict[int, str]]:
        """Return where a restore of all tables as of `moment` begins, and what it lacks there.

        The latest start that lacks nothing; without one the latest of all, None if there is none.
        """
        first: tuple[ReadStart | None, dict[int, str]] | None = None
        for start in self.starts(moment):
            found = self.lacking(start, moment)
            if not found:
                return start, {}
            first = first or (start, found)
        return first or (None, {})

    def ranges(self) -> tuple[PromisedRange, ...]:
        """Return the moments through the chain's end at which all tables can be restored.

        There is at least one table at each of them.
        """
        found: list[tuple[int, int]] = []
        done_from = self._facts.hi + 1  # from here on everything is promised already
        for start in self.starts(self._facts.hi):
            found += self._ranges_from(start, done_from)
            joined = _joined(found)
            if joined and joined[-1].until_ts == self._facts.hi:
                done_from = joined[-1].from_ts
        return tuple(_joined(found))

    def _ranges_from(self, start: ReadStart, until: int) -> Iterator[tuple[int, int]]:
        since: int | None = None
        is_any = not start.tables.keys() <= self._moving
        for ts, alive, lost in self._walk(start):
            if ts >= until:
                break
            is_whole = bool(is_any or alive) and not lost
            if is_whole and since is None:
                since = ts
            elif not is_whole and since is not None:
                yield since, ts - 1
                since = None
        else:
            until = self._facts.hi + 1
        if since is not None:
            yield since, until - 1

    def _walk(
        self, start: ReadStart
    ) -> Iterator[tuple[int, Mapping[int, RestoreStart], Mapping[int, str]]]:
        """Yield, from `start` on and after each DDL, the tables that are known, and the lost ones.

        Of those of `start` only the ones that DDL touches. Both are changed by the next step.
        """
        alive = {
            i: RestoreStart(name, start.ts, start.id)
            for i, name in start.tables.items()
            if i in self._moving
        }
        gone: dict[int, RestoreStart] = {}
        lost = {i: name for i, name in self._existing(start.ts) if i not in start.tables}
        yield start.ts, alive, lost
        first = bisect.bisect_right(self._turns, start.ts, key=lambda turn: turn.ts)
        for ts, turns in itertools.groupby(self._turns[first:], key=lambda turn: turn.ts):
            if ts > self._facts.hi:
                return
            for turn in turns:
                apply_event(alive, gone, turn)
                lost.pop(turn.table_id, None)
                if turn.name and turn.table_id not in alive and self._wanted(turn.name):
                    lost[turn.table_id] = turn.name
            yield ts, alive, lost

    def _existing(self, ts: int) -> Iterator[tuple[int, str]]:
        """Yield the tables that count and existed at `ts`: ids and names."""
        yield from ((i, name) for shown_ts, i, name in self._still if shown_ts > ts)
        for table_id, turns in self._of_id.items():
            place = bisect.bisect_right(turns, ts, key=lambda turn: turn.ts)
            name = turns[place - 1].name if place else self._first_name(table_id, turns)
            if name is not None and self._wanted(name):
                yield table_id, name

    def _shown_through(self, table_id: int) -> int:
        """Return until when (TSO) changes or a snapshot show that a table existed."""
        return max(self._evidence.changed.get(table_id, 0), self._last_held.get(table_id, 0))

    def _first_name(self, table_id: int, turns: Sequence[TableEvent]) -> str | None:
        """Return the name of a table before its first event, None if it didn't exist."""
        first = turns[0]
        # One that takes its own rows alone was recovered: it had been dropped before.
        is_swapped = table_id in first.takes and len(first.takes) > 1
        if first.begins or (first.takes and not is_swapped):
            return None
        return self._evidence.names.get(table_id) or next(
            (turn.name for turn in turns if turn.name), None
        )

    def _wanted(self, name: str) -> bool:
        found = self._is_wanted.get(name)
        if found is None:
            schema, table = TableName.parse(name)
            is_of_system = folded(schema) in SYSTEM_SCHEMAS
            found = self._is_wanted[name] = not is_of_system and self._wants(schema, table)
        return found


def _is_of_system(name: str | None) -> bool:
    return name is not None and folded(TableName.parse(name).schema) in SYSTEM_SCHEMAS


def _joined(ranges: Sequence[tuple[int, int]]) -> list[PromisedRange]:
    """Return the ranges in order, those that touch as one."""
    found: list[PromisedRange] = []
    for from_ts, until_ts in sorted(ranges):
        if found and from_ts <= found[-1].until_ts + 1:
            last = found.pop()
            found.append(PromisedRange(last.from_ts, max(last.until_ts, until_ts)))
        else:
            found.append(PromisedRange(from_ts, until_ts))
    return found

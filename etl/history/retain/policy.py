"""Decide what the recovery window needs, and so what may be removed.

Pure: no clock, no files. The promise: every table that can be restored at a moment of the recovery
window can be restored there afterwards. That takes a snapshot at or before that moment which holds
it, and the chain from there to it; or the chain since it was created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.etl.history.retain.table_events import (
    ReadStart,
    RestoreStart,
    TableEvent,
    restorable_at,
)
from sluice.tidb import tso

__all__ = [
    "ArchiveInventory",
    "RetentionDecision",
    "RetentionPolicy",
    "decide_retention",
    "pinned_by",
    "recovery_window_start",
]


@dataclass(frozen=True, slots=True)
class ArchiveInventory:
    """An archive's content.

    Its chain `(lo, hi]` (TSO), without holes, the snapshots in it that can be read, and the table
    events of DDL, ascending.
    """

    lo: int
    hi: int
    snapshots: tuple[ReadStart, ...]
    turns: tuple[TableEvent, ...]


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Retention times of the settings (ms, 0 for ever), and the tables that count, by full name."""

    log_ms: int
    snapshots_ms: int
    wanted: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """The decision what to remove: snapshots `forget`, the chain through `before_ts` (0: none).

    `before_ts` is a TSO. What is kept relies on the snapshots `rely_on`: they are to be read before
    anything is removed. `pinned_by` names the table, or the other reason, that needs the oldest of
    the chain.
    """

    promised_ts: int
    forget: tuple[str, ...] = ()
    before_ts: int = 0
    depends_on: tuple[str, ...] = ()
    held_by: str = ""


def recovery_window_start(facts: ArchiveInventory, keep: RetentionPolicy, now_ts: int) -> int:
    """Return the first moment (TSO) of the recovery window.

    `now_ts` is the earlier of the upstream's and this machine's time, so that a clock that is wrong
    makes the range longer, never shorter.
    """
    if not keep.log_ms:
        return facts.lo
    return max(facts.lo, _now(facts, now_ts) - tso.span(keep.log_ms))


def _now(facts: ArchiveInventory, now_ts: int) -> int:
    return min(facts.hi, now_ts)


def decide_retention(
    facts: ArchiveInventory,
    keep: RetentionPolicy,
    now_ts: int,
    held: Sequence[str] = (),
    held_ts: int | None = None,
) -> RetentionDecision:
    """Decide what may be removed of an archive.

    `held`: snapshots, `held_ts`: the chain from here on, that readers use now.
    """
    promised = recovery_window_start(facts, keep, now_ts)
    chosen = _restore_starts(facts, keep, promised)
    relied = {origin.snapshot for origin in chosen.values() if origin.snapshot}
    stay = (
        relied | set(held) | {snapshot.id for snapshot in facts.snapshots if snapshot.ts > promised}
    )
    thin, thin_rely = _thin_out(facts, keep, now_ts, promised, frozenset(stay - set(held)))
    old = {
        snapshot.id
        for snapshot in facts.snapshots
        if keep.log_ms and snapshot.ts <= _now(facts, now_ts) - tso.span(keep.log_ms)
    }
    forget = old - stay | (thin - set(held))
    before, why = _cut_chain(facts, promised, chosen, held_ts)
    rely_on = tuple(sorted(relied | thin_rely)) if forget or before else ()
    return RetentionDecision(promised, tuple(sorted(forget)), before, rely_on, why)


def pinned_by(facts: ArchiveInventory, keep: RetentionPolicy, now_ts: int) -> str:
    """Return `pinned_by` of `decide_retention`, without deciding what may be removed."""
    promised = recovery_window_start(facts, keep, now_ts)
    return _cut_chain(facts, promised, _restore_starts(facts, keep, promised), None)[1]


def _restore_starts(
    facts: ArchiveInventory, keep: RetentionPolicy, moment: int
) -> dict[int, RestoreStart]:
    """Return the best start for each table that counts at `moment`: with the shortest chain."""
    best: dict[int, RestoreStart] = {}
    for start in _possible_starts(facts, moment):
        for table_id, origin in restorable_at(start, facts.turns, moment).items():
            there = best.get(table_id)
            if keep.wanted(origin.name) and (there is None or origin.needs_ts > there.needs_ts):
                best[table_id] = origin
    return best


def _possible_starts(facts: ArchiveInventory, moment: int) -> Iterator[ReadStart]:
    yield ReadStart(facts.lo)
    yield from (snapshot for snapshot in facts.snapshots if facts.lo <= snapshot.ts <= moment)


def _cut_chain(
    facts: ArchiveInventory, promised: int, chosen: Mapping[int, RestoreStart], held_ts: int | None
) -> tuple[int, str]:
    """Through where the chain may go, and what holds the rest."""
    before, why = promised, "the time to keep"
    for origin in sorted(chosen.values(), key=lambda origin: origin.name):
        if origin.needs_ts < before:
            before = origin.needs_ts
            start = f"in the snapshot {origin.snapshot}" if origin.snapshot else ""
            why = f"{origin.name}, {start or 'of which no snapshot holds rows yet'}"
    if held_ts is not None and held_ts < before:
        before, why = held_ts, "a reader of it"
    return (before if before > facts.lo else 0), why


def _thin_out(
    facts: ArchiveInventory, keep: RetentionPolicy, now_ts: int, promised: int, stay: frozenset[str]
) -> tuple[set[str], set[str]]:
    """Return which snapshots inside the promised range may go, as one a span is left.

    And on which ones their tables rely then.
    """
    if not keep.snapshots_ms:
        return set(), set()
    span = tso.span(keep.snapshots_ms)
    left = sorted(
        (snapshot for snapshot in facts.snapshots if snapshot.id in stay),
        key=lambda snapshot: snapshot.ts,
    )
    first: dict[int, str] = {}
    for snapshot in left:
        first.setdefault(snapshot.ts // span, snapshot.id)
    old = [
        snapshot
        for snapshot in left
        if promised < snapshot.ts <= _now(facts, now_ts) - span
        and snapshot.id not in first.values()
    ]
    thin: list[ReadStart] = []
    for snapshot in old:
        others = [one for one in left if one is not snapshot]
        if {i for i, name in snapshot.tables.items() if keep.wanted(name)} <= _starts_without(
            facts, keep, others, snapshot.ts
        ).keys():
            thin.append(snapshot)
            left = others
    rely = (
        origin.snapshot
        for snapshot in thin
        for origin in _starts_without(facts, keep, left, snapshot.ts).values()
    )
    return {snapshot.id for snapshot in thin}, set(rely) - {""}


def _starts_without(
    facts: ArchiveInventory, keep: RetentionPolicy, others: Sequence[ReadStart], moment: int
) -> dict[int, RestoreStart]:
    """Return the start of each table that counts at `moment` if there are only `others`."""
    return _restore_starts(replace(facts, snapshots=tuple(others)), keep, moment)

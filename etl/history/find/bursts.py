"""Tell bursts of row changes, such as a DELETE without WHERE, from what an application does.

An application's transactions are of some sizes, and come again and again. A burst is of a size
that nothing else has, or of many times as many rows as there are at other times.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sluice.etl.history.find.activity import Activity, Cell, Series
from sluice.tidb import tso
from sluice.tidb.table_name import exactly

__all__ = ["Burst", "Incident", "find_incidents"]

MAX_PAUSE_MINUTES = 5
"""A script that deletes in batches rests between them, but hardly longer."""
MIN_ROWS = 10
"""A person finds fewer rows in the list of transactions."""
ALIKE = 5
"""A stretch of time with a fifth of another one's rows is like it."""
MAX_ALIKE = 4
"""What comes more often again is usual. An accident may be repeated, and lie in two stretches."""
KNOWN_MINUTES = 10
"""Of a shorter time nothing is known to be usual."""
MAX_INCIDENTS = 50
_MINUTE = tso.span(60_000)
_WORST_FIRST = {"delete": 0, "update": 1, "insert": 2}


@dataclass(slots=True)
class Burst:
    """Row changes of one table and kind that stand out.

    They are those of transactions with at least `least` of them, at most `most`, from `first_ts`
    through `last_ts`. `glob`: fits this table alone.
    """

    table: str
    glob: str
    kind: str
    first_ts: int
    last_ts: int
    transactions: int
    rows: int
    least: int
    most: int
    others: int = 0
    """Other transactions with changes of this table and kind, at any time that was looked at."""
    others_rows: int = 0
    others_most: int = 0
    """Changes of the largest of them."""
    between: int = 0
    """Those of them that are smaller, and came in the same minutes."""
    is_mixed: bool = False
    """Whether others of the same size came at other times, so that some may be among these."""
    lowest: int = field(default=0, repr=False)
    """The size from which on transactions are of the burst."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Bursts of one kind at the same time, the largest first.

    `min_rows`: transactions of at least that many of these changes are exactly theirs, so that all
    can be taken back as one; 0 if others would be among them.
    """

    kind: str
    first_ts: int
    last_ts: int
    min_rows: int
    bursts: tuple[Burst, ...]
    back_ts: int = 0
    """When as many rows were inserted into each of the tables after deletes; 0: never."""

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.bursts)


def find_incidents(activity: Activity) -> list[Incident]:
    """Return what stands out: deletes first, then updates, of each kind the most rows first.

    Deletes whose rows seem to be back come behind the others.
    """
    minutes = max(1, activity.last // _MINUTE - activity.through // _MINUTE)
    bursts = [
        burst
        for (table, kind), series in activity.series.items()
        for burst in _bursts(table, kind, series, minutes)
    ]
    found = [_incident(some, activity) for some in _together(bursts)]
    inserts = [burst for burst in bursts if burst.kind == "insert"]
    found = [replace(one, back_ts=_back_ts(one, inserts)) for one in found]
    found.sort(key=lambda each: (_WORST_FIRST[each.kind], bool(each.back_ts), -each.rows))
    return found[:MAX_INCIDENTS]


def _back_ts(incident: Incident, inserts: Sequence[Burst]) -> int:
    if incident.kind != "delete":
        return 0
    times = [
        min(
            (
                each.first_ts
                for each in inserts
                if (each.table, each.rows) == (burst.table, burst.rows)
                and each.first_ts > incident.last_ts
            ),
            default=0,
        )
        for burst in incident.bursts
    ]
    return max(times) if all(times) else 0


def _bursts(table: str, kind: str, series: Series, minutes: int) -> list[Burst]:
    """Return the bursts of a table and kind.

    From the largest transactions to the smallest: a burst that was found with the large ones takes
    in smaller ones, such as its last batch, as long as those come at no other time.
    """
    bursts: list[Burst] = []
    open_ones: list[Burst] = []
    for size in sorted({size for _, size in series}, reverse=True):
        for burst in list(open_ones):
            if not _take_in(burst, series, size):
                open_ones.remove(burst)
        for run in _runs(series, size, minutes):
            cells = list(run)
            if not any(_overlap(cell, burst) for burst in bursts for cell in cells):
                bursts.append(_burst(table, kind, cells, size))
                open_ones.append(bursts[-1])
    for burst in bursts:
        _compare(burst, series, [each for each in bursts if each is not burst])
    return bursts


def _runs(series: Series, size: int, minutes: int) -> Iterator[Sequence[Cell]]:
    """Yield the transactions of at least this size, of each time at which they stand out."""
    cells: dict[int, list[Cell]] = {}
    for (minute, each), cell in series.items():
        if each >= size:
            cells.setdefault(minute, []).append(cell)
    rows = {minute: sum(cell.rows for cell in some) for minute, some in cells.items()}
    usual = _usual_rows(rows.values(), minutes)
    for run in _loud_runs(rows, ALIKE * max(1, usual)):
        mine = sum(rows[minute] for minute in run)
        if mine >= MIN_ROWS and _alike(rows, run, mine) <= MAX_ALIKE:
            first, last = run[0], run[-1]
            while not usual and first - 1 in cells:  # a script begins, or ends, with few rows
                first -= 1
            while not usual and last + 1 in cells:
                last += 1
            yield [cell for at in range(first, last + 1) for cell in cells.get(at, ())]


def _usual_rows(rows: Iterable[int], minutes: int) -> int:
    """Return how many rows three of four minutes don't exceed; 0 if too little is known."""
    if minutes < KNOWN_MINUTES:
        return 0
    ordered = sorted(rows)
    place = minutes * 3 // 4 - (minutes - len(ordered))  # in the other minutes there are none
    return ordered[min(place, len(ordered) - 1)] if place >= 0 else 0


def _alike(rows: dict[int, int], run: Sequence[int], mine: int) -> int:
    """Return how many other stretches as long as the run have about as many rows as it, or more."""
    first, last = run[0], run[-1]
    stretches: Counter[int] = Counter()
    for minute, count in rows.items():
        if not first - 1 <= minute <= last + 1:
            stretches[(minute - first) // (last - first + 1)] += count
    return sum(ALIKE * count >= mine for count in stretches.values())


def _loud_runs(rows: dict[int, int], least: int) -> list[list[int]]:
    """Return the minutes with at least that many rows, those with short pauses together."""
    runs: list[list[int]] = []
    for minute in sorted(minute for minute, count in rows.items() if count >= least):
        if runs and minute - runs[-1][-1] <= MAX_PAUSE_MINUTES:
            runs[-1].append(minute)
        else:
            runs.append([minute])
    return runs


def _burst(table: str, kind: str, cells: Sequence[Cell], size: int) -> Burst:
    return Burst(
        table,
        exactly(table),
        kind,
        min(cell.first_ts for cell in cells),
        max(cell.last_ts for cell in cells),
        sum(cell.transactions for cell in cells),
        sum(cell.rows for cell in cells),
        min(cell.least for cell in cells),
        max(cell.most for cell in cells),
        lowest=size,
    )


def _overlap(cell: Cell, burst: Burst) -> bool:
    return cell.first_ts <= burst.last_ts and burst.first_ts <= cell.last_ts


def _take_in(burst: Burst, series: Series, size: int) -> bool:
    """Take transactions of this size in if all of them are near; return whether to go on."""
    cells = [cell for (_, each), cell in series.items() if each == size]
    near = [
        cell
        for cell in cells
        if burst.first_ts - _MINUTE <= cell.first_ts and cell.last_ts <= burst.last_ts + _MINUTE
    ]
    if len(near) < len(cells):
        return not near
    for cell in near:
        burst.first_ts = min(burst.first_ts, cell.first_ts)
        burst.last_ts = max(burst.last_ts, cell.last_ts)
        burst.transactions += cell.transactions
        burst.rows += cell.rows
        burst.least = min(burst.least, cell.least)
    burst.lowest = size
    return True


def _compare(burst: Burst, series: Series, bursts: Sequence[Burst]) -> None:
    """Count what else there is, other bursts left out."""
    for (_, size), cell in series.items():
        overlaps = _overlap(cell, burst)
        if overlaps and size >= burst.lowest:
            continue
        if any(size >= each.lowest and _overlap(cell, each) for each in bursts):
            continue
        burst.others += cell.transactions
        burst.others_rows += cell.rows
        burst.others_most = max(burst.others_most, cell.most)
        if overlaps:
            burst.between += cell.transactions
        elif cell.most >= burst.least:
            burst.is_mixed = True


def _together(bursts: Iterable[Burst]) -> list[list[Burst]]:
    """Return bursts of one kind that follow each other without a longer pause, together."""
    pause = MAX_PAUSE_MINUTES * _MINUTE
    found: list[list[Burst]] = []
    ordered = sorted(bursts, key=lambda each: (each.kind, each.first_ts))
    for _, some in itertools.groupby(ordered, key=lambda each: each.kind):
        end = 0
        for burst in some:
            if end and burst.first_ts <= end + pause:
                found[-1].append(burst)
            else:
                found.append([burst])
                end = 0
            end = max(end, burst.last_ts)
    return found


def _incident(bursts: list[Burst], activity: Activity) -> Incident:
    first, last = min(each.first_ts for each in bursts), max(each.last_ts for each in bursts)
    bursts.sort(key=lambda each: -each.rows)
    min_rows = min(each.least for each in bursts)
    usual = sum(_usual(each, activity, first, last) for each in bursts)
    return Incident(bursts[0].kind, first, last, min_rows if usual < min_rows else 0, tuple(bursts))


def _usual(burst: Burst, activity: Activity, first: int, last: int) -> int:
    """Return the changes of the largest other transaction of the table in that time."""
    return max(
        (
            cell.most
            for (_, size), cell in activity.series[burst.table, burst.kind].items()
            if cell.first_ts <= last
            and first <= cell.last_ts
            and not (size >= burst.lowest and _overlap(cell, burst))
        ),
        default=0,
    )

"""The documents of a source, and what a process adds to them."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sluice.relay.measures.points import DAY, HOUR, WEEK, LagStep, append_step

__all__ = [
    "BOUNDS_S",
    "HOUR_MS",
    "MAX_TABLES",
    "OTHER_TABLES",
    "CounterDocument",
    "Durations",
    "TableCount",
    "TableCounters",
]

BOUNDS_S = tuple(0.001 * 2**n for n in range(22))
"""The upper bounds of the buckets of durations: 1 ms to 35 minutes."""
MAX_TABLES = 20_000
OTHER_TABLES = "(others)"
"""The tables that changed longest ago, when there are more than that many, together."""
_MAX_WRITERS = 50
HOUR_MS, HOURS_KEPT = 3_600_000, 24


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram of durations: the count in each bucket of BOUNDS_S, and beyond.

    It has the sum in seconds, too.
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    @classmethod
    def from_seconds(cls, seconds: Iterable[float]) -> Self:
        counts, total = [0] * (len(BOUNDS_S) + 1), 0.0
        for each in seconds:
            counts[bisect_left(BOUNDS_S, each)] += 1
            total += each
        return cls(tuple(counts), total)

    def __add__(self, other: Durations) -> Durations:
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Durations(counts, round(self.sum_s + other.sum_s, 6))


@dataclass(frozen=True, slots=True)
class TableCount:
    """Changes of a table that were applied, by the name it has upstream.

    `last_commit_ts`: no later change is applied; `last_ms`: when that was noted (Unix ms). `hours`:
    changes by hour (since the epoch) in the last 24 that had any, ascending.
    """

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    last_commit_ts: int = 0
    last_ms: int = 0
    hours: tuple[tuple[int, int], ...] = ()

    def last_hours(self, now_ms: int) -> list[int]:
        """Return the changes in each of the last 24 hours, the present one last."""
        known, now = dict(self.hours), now_ms // HOUR_MS
        return [known.get(hour, 0) for hour in range(now + 1 - HOURS_KEPT, now + 1)]

    def __add__(self, other: TableCount) -> TableCount:
        return TableCount(
            self.inserts + other.inserts,
            self.updates + other.updates,
            self.deletes + other.deletes,
            max(self.last_commit_ts, other.last_commit_ts),
            max(self.last_ms, other.last_ms),
            _sum_hours(self.hours, other.hours),
        )


@dataclass(frozen=True, slots=True)
class DocumentWriters:
    """The processes that have added to a document, and how often each.

    A process that doesn't learn whether its addition arrived finds it here.
    """

    done: Mapping[str, int] = field(default_factory=dict)

    def has(self, token: str, number: int) -> bool:
        return self.done.get(token, 0) >= number

    def then(self, token: str, number: int) -> DocumentWriters:
        others = [(writer, done) for writer, done in self.done.items() if writer != token]
        return DocumentWriters(dict([*others[1 - _MAX_WRITERS :], (token, number)]))


@dataclass(frozen=True, slots=True)
class CounterDocument:
    """The counters of a source since `since_ms` (Unix ms, 0: nothing yet).

    `at_ts` is the TSO that it had reached at `noted_ms`, the time of the last addition.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    durations: Mapping[str, Durations] = field(default_factory=dict)
    at_ts: int = 0
    since_ms: int = 0
    noted_ms: int = 0
    hour: tuple[LagStep, ...] = ()
    day: tuple[LagStep, ...] = ()
    week: tuple[LagStep, ...] = ()
    writers: DocumentWriters = DocumentWriters()

    def plus(self, other: CounterDocument, token: str, number: int) -> CounterDocument:
        """Add the counts of a process, its addition of this number.

        As it is if it is here already.
        """
        if self.writers.has(token, number):
            return self
        steps = other.hour
        hour, day, week = self.hour, self.day, self.week
        for step in steps:
            hour, day = append_step(hour, step, HOUR), append_step(day, step, DAY)
            week = append_step(week, step, WEEK)
        return CounterDocument(
            _sum(self.counts, other.counts),
            _sum(self.durations, other.durations),
            max(self.at_ts, other.at_ts),
            self.since_ms or other.since_ms,
            max(self.noted_ms, other.noted_ms),
            hour,
            day,
            week,
            self.writers.then(token, number),
        )

    def beside(self, other: CounterDocument) -> CounterDocument:
        """Add two sources up: what both have counted."""
        newer = max(self, other, key=lambda each: each.noted_ms)
        since = min((each.since_ms for each in (self, other) if each.since_ms), default=0)
        counts, durations = _sum(self.counts, other.counts), _sum(self.durations, other.durations)
        return replace(newer, counts=counts, durations=durations, since_ms=since)

    def to_json(self) -> bytes:
        """Return the file's content."""
        document = {
            "counts": dict(self.counts),
            "durations": {
                name: [list(one.counts), one.sum_s] for name, one in self.durations.items()
            },
            "at_ts": self.at_ts,
            "since_ms": self.since_ms,
            "noted_ms": self.noted_ms,
            "hour": self.hour,
            "day": self.day,
            "week": self.week,
            "writers": dict(self.writers.done),
        }
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read the file's content. Raises ValueError."""
        try:
            raw = json.loads(data)
            return cls(
                {str(name): int(count) for name, count in raw["counts"].items()},
                {
                    str(name): Durations(tuple(counts), sum_s)
                    for name, (counts, sum_s) in raw["durations"].items()
                },
                int(raw["at_ts"]),
                int(raw["since_ms"]),
                int(raw["noted_ms"]),
                tuple(LagStep(*step) for step in raw["hour"]),
                tuple(LagStep(*step) for step in raw["day"]),
                tuple(LagStep(*step) for step in raw.get("week", ())),
                DocumentWriters(
                    {str(writer): int(done) for writer, done in raw["writers"].items()}
                ),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no measures: {error!r}") from None


@dataclass(frozen=True, slots=True)
class TableCounters:
    """Changes by table."""

    tables: Mapping[str, TableCount] = field(default_factory=dict)
    writers: DocumentWriters = DocumentWriters()

    def plus(self, tables: Mapping[str, TableCount], token: str, number: int) -> TableCounters:
        """Add counts as CounterDocument.plus does."""
        if self.writers.has(token, number):
            return self
        return TableCounters(
            _keep_most_recent(_sum(self.tables, tables)), self.writers.then(token, number)
        )

    def to_json(self) -> bytes:
        """Return the file's content."""
        tables = {
            name: (
                one.inserts,
                one.updates,
                one.deletes,
                one.last_commit_ts,
                one.last_ms,
                *([one.hours] if one.hours else []),
            )
            for name, one in self.tables.items()
        }
        document = {"tables": tables, "writers": dict(self.writers.done)}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read the file's content. Raises ValueError."""
        try:
            raw: Any = json.loads(data)
            tables = {
                str(name): TableCount(*count[:5], *(_hours(found) for found in count[5:]))
                for name, count in raw["tables"].items()
            }
            return cls(
                tables,
                DocumentWriters(
                    {str(writer): int(done) for writer, done in raw["writers"].items()}
                ),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no measures of tables: {error!r}") from None


def _hours(raw: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple([(int(hour), int(changes)) for hour, changes in raw])


def _sum_hours(
    a: tuple[tuple[int, int], ...], b: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...]:
    if not b:
        return a
    if a and len(b) == 1 and a[-1][0] == b[0][0]:  # thousands of tables in the present hour
        return (*a[:-1], (b[0][0], a[-1][1] + b[0][1]))
    found = Counter(dict(a))
    found.update(dict(b))
    first = max(found) + 1 - HOURS_KEPT
    return tuple(sorted((hour, count) for hour, count in found.items() if hour >= first))


def _sum(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(a)
    for name, more in b.items():
        found[name] = found[name] + more if name in found else more
    return found


def _keep_most_recent(tables: dict[str, TableCount]) -> dict[str, TableCount]:
    """Keep at most MOST_TABLES, those that changed last, and OTHERS."""
    if len(tables) <= MAX_TABLES:
        return tables
    others = tables.pop(OTHER_TABLES, TableCount())
    by_age = sorted(tables, key=lambda name: tables[name].last_commit_ts)
    for name in by_age[: len(tables) + 1 - MAX_TABLES]:
        others += tables.pop(name)
    return {**tables, OTHER_TABLES: others}

"""Define a search's results: transactions with rows by table, DDL, and the totals."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from sluice.etl.history.errors import ConditionError, FindError
from sluice.etl.history.find.query import SearchQuery
from sluice.relay.json_codec import JsonDocument
from sluice.tidb.table_name import abbreviate

MAX_TS = 2**63 - 1
MAX_GROUPS = 100_000
_COUNTERS = ("transactions", "inserts", "updates", "deletes", "ddls", "windows", "bytes")


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of a transaction that fit, of one table under its name of then.

    `keys`: those of the first few.
    """

    table: str
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundTransaction:
    """A found transaction; `rows`: how many of its row changes fit."""

    commit_ts: int
    start_ts: int
    rows: int
    tables: tuple[TableRows, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundDdl:
    """A found DDL.

    `kind`: TiDB's name of it; `tables`: those it is about. `drops`: rows are gone after it.
    """

    commit_ts: int
    kind: str
    statement: str
    tables: tuple[str, ...] = ()
    drops: bool = False
    start_ts: int = 0


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """Row changes of transactions that share what the query groups by; the rest is empty.

    `minute`: the TSO of its beginning; `first_ts`, `last_ts`: commit timestamps.
    """

    minute: int = 0
    table: str = ""
    shape: str = ""
    transactions: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    first_ts: int = 0
    last_ts: int = 0

    @property
    def key(self) -> tuple[int, str, str]:
        return self.minute, self.table, self.shape

    @property
    def rows(self) -> int:
        return self.inserts + self.updates + self.deletes


E = TypeVar("E", FoundTransaction, FoundDdl)


@dataclass(slots=True)
class SearchResults(JsonDocument):
    """The first ones as the query orders them, and the counts of all that fit.

    `windows`, `bytes` (of parts): what was read.
    """

    JSON_COMPLETE: ClassVar = True

    transactions: list[FoundTransaction] = field(default_factory=list)
    ddls: list[FoundDdl] = field(default_factory=list)
    groups: list[FoundGroup] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0))
    unknown: list[str] | None = None
    """Columns of the condition that none of the searched tables had; None: no table was searched.
    """
    lacking: dict[str, list[str]] = field(default_factory=dict)
    """The searched tables that lacked some columns of the condition: these, by the table's name."""

    def count(self, table: str, unknown: Collection[str]) -> None:
        """Count a searched table that lacks these columns of the condition."""
        if unknown:
            self._add_lacking(table, unknown)
        self._count(unknown)

    def _add_lacking(self, table: str, columns: Iterable[str]) -> None:
        self.lacking[table] = sorted({*self.lacking.get(table, ()), *columns})

    def _count(self, unknown: Iterable[str]) -> None:
        self.unknown = sorted(unknown if self.unknown is None else set(self.unknown) & set(unknown))

    @property
    def lacking_texts(self) -> list[str]:
        """Return which tables a condition can't select by, for people."""
        tables: dict[str, list[str]] = {}
        for table, columns in sorted(self.lacking.items()):
            tables.setdefault(" or ".join(columns), []).append(table)
        return [
            f"no column {columns} in {abbreviate(names)}: there, nothing fits a condition on it"
            for columns, names in tables.items()
        ]

    def check_columns(self) -> None:
        """Raise ConditionError if no searched table has one of the condition's columns."""
        if self.unknown:
            raise ConditionError(
                f"--where: no searched table has a column {' or '.join(self.unknown)}: columns are"
                " called as they were then"
            )

    def add(self, other: SearchResults, query: SearchQuery) -> None:
        """Add the results of another search."""
        self.transactions = first_results([*self.transactions, *other.transactions], query)
        self.ddls = first_results([*self.ddls, *other.ddls], query)
        self.groups = joined_groups(self.groups, other.groups)
        for name, count in other.counts.items():
            self.counts[name] += count
        for table, columns in other.lacking.items():
            self._add_lacking(table, columns)
        if other.unknown is not None:
            self._count(other.unknown)


def first_results(found: Iterable[E], query: SearchQuery) -> list[E]:
    """Return as many results as the query wants, in its order.

    In order of time also those that share the last one's commit_ts, so that a search can continue
    behind them.
    """
    if query.order == "size":
        return sorted(found, key=lambda each: (-_size(each), *commit_order(each)))[: query.limit]
    ordered = sorted(found, key=commit_order, reverse=query.order == "newest")
    return ordered[: whole_timestamps([each.commit_ts for each in ordered], query.limit)]


def commit_order(found: FoundTransaction | FoundDdl) -> tuple[int, int]:
    """Return the sort key of transactions and DDL; at one commit_ts transactions come first."""
    return found.commit_ts, found.start_ts if isinstance(found, FoundTransaction) else MAX_TS


def whole_timestamps(ordered: Sequence[int], count: int) -> int:
    """Return how many ordered timestamps to take: `count`, and what equals the last of those."""
    while 0 < count < len(ordered) and ordered[count] == ordered[count - 1]:
        count += 1
    return count


def _size(found: FoundTransaction | FoundDdl) -> int:
    return found.rows if isinstance(found, FoundTransaction) else 0


def joined_groups(*found: Iterable[FoundGroup]) -> list[FoundGroup]:
    """Return groups of several windows, with those that are one joined.

    Raises FindError beyond MAX_GROUPS.
    """
    joined: dict[tuple[int, str, str], FoundGroup] = {}
    for one in itertools.chain(*found):
        known = joined.get(one.key)
        joined[one.key] = (
            one
            if known is None
            else replace(
                known,
                transactions=known.transactions + one.transactions,
                inserts=known.inserts + one.inserts,
                updates=known.updates + one.updates,
                deletes=known.deletes + one.deletes,
                first_ts=min(known.first_ts, one.first_ts),
                last_ts=max(known.last_ts, one.last_ts),
            )
        )
    if len(joined) > MAX_GROUPS:
        raise FindError(
            f"there are more than {MAX_GROUPS:,} groups",
            hint="narrow --since, --until or --table, or group by less",
        )
    return list(joined.values())


def first_groups(found: Iterable[FoundGroup], query: SearchQuery) -> list[FoundGroup]:
    """Return as many groups as the query wants, in its order; by their last commit the newest."""
    sort_key, reverse = {
        "time": (lambda each: (each.first_ts, each.key), False),
        "newest": (lambda each: (each.last_ts, each.key), True),
        "size": (lambda each: (each.rows, each.key), True),
    }[query.order]
    return sorted(found, key=sort_key, reverse=reverse)[: query.limit]

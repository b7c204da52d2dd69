"""The two sides of a verification: what is asked of each, whatever it is.

A side holds tables as they were at one timestamp. Servers compute checksums of ranges of keys; what
a side can't compute is compared row by row. Rows and sums of one table are asked of both sides with
the same range, so a range must mean the same rows to both; where two servers order text in two
ways, a row may lie in one range here and in another there, and is only counted as different once
all ranges of the table are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from sluice.etl.changes.formats.key_ranges import KeyColumn, in_range
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable
from sluice.etl.verify.checksum import Checksum, ServerColumn
from sluice.tidb.schema import Table

__all__ = [
    "CHANGED",
    "EXTRA",
    "MISSING",
    "ComparedTable",
    "Difference",
    "KeyRange",
    "VerifyEndpoint",
]

MISSING, EXTRA, CHANGED = "missing", "extra", "changed"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows with `low` <= key < `high`.

    The bounds are SQL literals for the first columns of `ComparedTable.key`; None: no limit.
    """

    low: tuple[str, ...] | None = None
    high: tuple[str, ...] | None = None

    @property
    def is_all(self) -> bool:
        """Return whether every row is inside."""
        return self.low is None and self.high is None

    def condition(self, key: tuple[KeyColumn, ...]) -> str:
        """Return the range as an SQL condition."""
        return in_range(key, self.low, self.high)

    def __str__(self) -> str:
        low, high = (", ".join(bound) if bound else "" for bound in (self.low, self.high))
        return f"[{low or 'first'} … {high or 'last'})"


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table of both sides.

    `table`: the upstream's, with the columns alone that are compared, generated ones as if they
    were plain; `place` where it is downstream. `key`: by what ranges are cut, () if only the whole
    can be asked for. `identity`: names of the columns that identify a row, () for a table without a
    key, which is a multiset. `upstream`, `downstream`: the columns as the servers have them;
    `by_rows`: why rows are compared and not checksums, "" if servers compute these. `bytes`: about
    how many the downstream has. `notes`: for people. `others`: tables of the upstream that are
    merged with this one, with the same columns: all their rows together are compared. `where`: of
    each source the SQL condition of the rows that are downstream, () if all of them are.
    """

    table: Table
    place: DownstreamTable
    key: tuple[KeyColumn, ...]
    identity: tuple[str, ...]
    upstream: tuple[ServerColumn, ...]
    downstream: tuple[ServerColumn, ...]
    by_rows: str = ""
    bytes: int = 0
    notes: tuple[str, ...] = ()
    others: tuple[Table, ...] = ()
    where: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Return `schema.table` upstream, of the first one."""
        return self.table.full_name

    @property
    def sources(self) -> tuple[Table, ...]:
        """Return all tables of the upstream whose rows are compared."""
        return (self.table, *self.others)

    def upstream_rows(self, within: KeyRange) -> Iterator[tuple[Table, str]]:
        """Yield each source and the SQL condition of its rows in a range."""
        for number, source in enumerate(self.sources):
            condition = within.condition(self.key)
            yield source, f"{condition} AND {self.where[number]}" if self.where else condition


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same on both sides.

    `table`: full name upstream; `kind`: MISSING downstream, EXTRA there, CHANGED, then both sides
    have the key. `key`: its values by column, all columns for a table without a key; `upstream`,
    `downstream`: the row there, None if it isn't: values as `sluice.tidb.rows.arrow_schema` has
    them. `times`: in a table without a key, how often more. `binlog`: what is written of the row
    last, "" if nothing is known; `commit_ts` (TSO) of that, and the `window` it came in.
    """

    table: str
    kind: str
    key: Mapping[str, Any]
    upstream: Mapping[str, Any] | None
    downstream: Mapping[str, Any] | None
    times: int = 1
    binlog: str = ""
    commit_ts: int = 0
    window: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns that differ, of a row that is on both sides."""
        if self.upstream is None or self.downstream is None:
            return ()
        return tuple(
            name for name, value in self.upstream.items() if _differs(value, self.downstream[name])
        )

    def said_last(self, binlog: str, commit_ts: int, window: str) -> Difference:
        """Return the difference with the row's last change in the binlog."""
        return replace(self, binlog=binlog, commit_ts=commit_ts, window=window)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, for scripts and documents; bytes as {"hex": …}."""
        return {
            "table": self.table,
            "kind": self.kind,
            "key": _row(self.key),
            "upstream": _row(self.upstream),
            "downstream": _row(self.downstream),
            "columns": list(self.columns),
            "times": self.times,
            "binlog": self.binlog,
            "commit_ts": self.commit_ts,
            "window": self.window,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Difference:
        """Parse the result of `to_json`."""
        rows = {name: _unrow(document[name]) for name in ("key", "upstream", "downstream")}
        named = {name: value for name, value in document.items() if name != "columns"}
        return cls(**named | rows)


class VerifyEndpoint(Protocol):
    """Tables at one timestamp, read over sessions 0 to `sessions` - 1.

    One thread at a time uses a session. Every method raises SluiceErrors;
    `sluice.etl.history.snapshots.consistent_reader.TableChanged` if a DDL has come between.
    """

    @property
    def ts(self) -> int:
        """Return the TSO as of which this side is read."""

    @property
    def sessions(self) -> int:
        """Return how many can be read over at a time."""

    def describe(self) -> str:
        """Describe the side and its address for people; without secrets."""

    def checksum(self, session: int, table: ComparedTable, within: KeyRange) -> Checksum | None:
        """Return the checksum of the rows in a range; None if this side computes none."""

    def in_order(
        self, session: int, table: ComparedTable, bounds: Sequence[tuple[str, ...]]
    ) -> list[tuple[str, ...]]:
        """Return the keys of `bounds` that have a row, in the order of this side's server."""

    def rows(
        self, session: int, table: ComparedTable, within: KeyRange
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a range: `table.table.writable_columns`.

        They are typed as `sluice.tidb.rows.arrow_schema`.
        """

    def close(self) -> None:
        """Close all sessions: a thread that reads gets an error that the connection is lost."""


def _differs(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() != other.hex()  # the sign of a zero
    return bool(one != other)


def _row(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    return {
        name: {"hex": value.hex()} if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def _unrow(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    return {
        name: bytes.fromhex(value["hex"]) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }

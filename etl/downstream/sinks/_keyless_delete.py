"""Remove many rows of a table without a key at once, and exactly as many of each as it should.

The rows are loaded into a temporary table with columns as the target has them, and found by a hash
of their values and then by the values themselves, exactly. Of which as many are there as have to
go, all go in one DELETE. Equal rows can't be kept apart, so of those that are there more often all
go, too, and as many as are to stay come back, where that makes the same rows. What is left, or
seems to be missing, gets a statement with a LIMIT for each row that differs: what that doesn't
find is missing. Two statements read the table once each, however many rows go. A table that is
much larger than what goes, and has an index, is left to those statements, too.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.errors import Signal
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.steps import DeleteDetail, ListedRows, Step
from sluice.etl.downstream import DownstreamError, LoadOutcome, MySQLSession
from sluice.etl.downstream.sinks._chunk_columns import ChunkColumn, downstream_columns
from sluice.tidb.folded import folded

_HASH = quote_name("sluice_hash")
_MAX_SIZE_RATIO = 1000
"""Rows of a table with an index for each row that goes, from which on no full scan is made."""
_MAX_COPIES = 500
"""Copies of one row at most that come back at once."""
_TABLE = (
    "SELECT TABLE_TYPE, TABLE_ROWS, EXISTS (SELECT 1 FROM information_schema.STATISTICS i WHERE"
    " i.TABLE_SCHEMA = t.TABLE_SCHEMA AND i.TABLE_NAME = t.TABLE_NAME) FROM"
    " information_schema.TABLES t WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)


class _CannotDeleteTogether(Signal):
    """The rows can't be looked for at once."""


def statements_of(step: Step) -> list[bytes]:
    """Return the statements of a delete step, one or more."""
    payload, listed = bytes(step.payload), step.detail_of(DeleteDetail).listed
    if listed is None:
        return [payload]
    edges = list(itertools.accumulate(listed.lengths, initial=0))
    return [payload[begin:end] for begin, end in itertools.pairwise(edges)]


@dataclass(frozen=True, slots=True)
class _ListedColumns:
    """The columns that the list brings.

    `are_all`: the table has no other one that a row could hold something in.
    """

    brought: Sequence[ChunkColumn]
    are_all: bool


@dataclass(frozen=True, slots=True)
class _RowCounts:
    """Row counts; `gone`: how many rows are to go at once.

    `back`: how many of a row come back, by its number. `alone`: the numbers of those that are left.
    """

    gone: int
    reinsert: Mapping[int, int]
    alone: Sequence[int]


class KeylessDelete:
    """One delete step that lists its rows. Every method raises DownstreamError."""

    def __init__(self, session: MySQLSession, step: Step, listed: ListedRows) -> None:
        self._session, self._step, self._listed = session, step, listed
        self._has_written = False
        self._target = f"{quote_name(step.schema)}.{quote_name(step.table)}"
        self._scratch = (
            f"{quote_name(step.schema)}.{quote_name('sluice_gone_' + secrets.token_hex(4))}"
        )
        self._row, self._times = (quote_name(name) for name in listed.layout.columns[:2])

    def execute(self) -> int | None:
        """Remove the rows; how many were removed.

        None if others than those that were looked at went.
        """
        affected: int | None = 0
        alone: Sequence[int] = range(len(self._listed.counts))
        try:
            affected, alone = self._delete_together()
        except _CannotDeleteTogether:
            pass
        except DownstreamError as error:
            if error.transient or self._has_written:
                raise
        if affected is None:
            return None
        statements = statements_of(self._step)
        return affected + sum(self._session.execute(statements[row]) for row in alone)

    def _delete_together(self) -> tuple[int | None, Sequence[int]]:
        """Delete rows together; return how many, and numbers of those left to a statement each."""
        columns = self._columns()
        brought = columns.brought
        try:
            self._load(brought)
            counted = self._count(columns)
            self._has_written = True
            if counted.alone:
                numbers = ", ".join(map(str, counted.alone))
                self._session.execute(
                    f"DELETE FROM {self._scratch} WHERE {self._row} IN ({numbers})"
                )
            if counted.gone and self._session.execute(
                f"DELETE {self._target} FROM {self._joined(brought)}"
            ) != (counted.gone):
                return None, counted.alone
            copies = sum(counted.reinsert.values())
            if (
                copies
                and self._session.execute(self._reinsert(brought, counted.reinsert)) != copies
            ):
                return None, counted.alone
        finally:
            if self._session.is_connected:
                self._session.query(f"DROP TEMPORARY TABLE IF EXISTS {self._scratch}")
        return counted.gone - copies, counted.alone

    def _columns(self) -> _ListedColumns:
        if not self._session.dialect.supports_transactional_load:
            raise _CannotDeleteTogether
        place = self._step.schema, self._step.table
        found = self._session.query(_TABLE, place)
        kind, size, is_indexed = found[0] if found else ("", 0, 0)
        if is_indexed and int(size or 0) > _MAX_SIZE_RATIO * len(self._listed.counts):
            raise _CannotDeleteTogether
        there = {
            folded(column.name): column for column in downstream_columns(self._session, *place)
        }
        names = [folded(name) for name in self._listed.layout.columns[2:]]
        brought = [there[name] for name in names if name in there]
        if len(brought) < len(names) or any(column.is_computed for column in brought):
            raise _CannotDeleteTogether
        # A table with a history of its own would show that rows went and came back.
        are_all = str(kind) == "BASE TABLE" and all(
            there[name].is_computed for name in set(there) - set(names)
        )
        return _ListedColumns(brought, are_all)

    def _load(self, columns: Sequence[ChunkColumn]) -> None:
        session, listed = self._session, self._listed
        own = (
            f"{self._row} INT NOT NULL, {self._times} BIGINT NOT NULL, {_HASH} BIGINT NOT NULL"
            " DEFAULT 0"
        )
        definitions = ", ".join(column.definition for column in columns)
        session.execute(
            f"CREATE TEMPORARY TABLE {self._scratch} ({own}, {definitions}, KEY ({_HASH}))"
            " ENGINE=InnoDB"
        )
        text = memoryview(self._step.payload)[sum(listed.lengths) :]
        hashed = f"{_HASH} = {_hash_of(columns, self._scratch)}"
        outcome = session.load(self._scratch, listed.layout, text, also=hashed)
        if outcome != LoadOutcome(len(listed.counts), 0, 0, 0):
            raise _CannotDeleteTogether

    def _count(self, columns: _ListedColumns) -> _RowCounts:
        """Count what is to be done with the rows.

        Where each is there, and few too often, the tables are joined only once: that costs as much
        as to remove the rows.
        """
        counted = (
            f"SELECT n.{self._row} AS i, n.{self._times} AS wanted, COUNT(*) AS found,"
            f" MAX({_may_differ_condition(columns)}) AS unlike FROM {self._joined(columns.brought)}"
            f" GROUP BY n.{self._row}, n.{self._times}"
        )
        groups = self._session.query(
            "SELECT found - wanted AS surplus, unlike, COUNT(*), SUM(i + 1), GROUP_CONCAT(IF(found"
            f" = wanted, NULL, i)) FROM ({counted}) AS counted GROUP BY surplus, unlike"
        )
        counts = self._listed.counts
        if sum(int(count) for _, _, count, _, _ in groups) == len(counts):
            lists = [
                (int(surplus), bool(unlike), int(total), _parse_numbers(rows))
                for surplus, unlike, _, total, rows in groups
                if int(surplus)
            ]
            # The server cuts a list that is too long, in the middle of a number, too: then the sum
            # is less.
            if all(sum(rows) + len(rows) == total for _, _, total, rows in lists):
                return self._classify(
                    [(surplus, unlike, rows) for surplus, unlike, _, rows in lists]
                )
        at_once = [
            int(row)
            for (row,) in self._session.query(
                f"SELECT i FROM ({counted}) AS counted WHERE wanted = found"
            )
        ]
        alone = sorted(set(range(len(counts))) - set(at_once))
        return _RowCounts(sum(counts[row] for row in at_once), {}, alone)

    def _classify(self, lists: Sequence[tuple[int, bool, Sequence[int]]]) -> _RowCounts:
        """Classify values of which all rows are there.

        `lists`: of those that are there in another number, how many too many, whether equal ones
        may not be alike, and their numbers.
        """
        back: dict[int, int] = {}
        alone: list[int] = []
        room = len(self._listed.counts)  # no more comes back than goes
        for surplus, unlike, rows in sorted(lists):
            for row in rows:
                if unlike or not 0 < surplus <= min(room, _MAX_COPIES):
                    alone.append(row)
                else:
                    back[row] = surplus
                    room -= surplus
        counts = self._listed.counts
        gone = sum(counts) - sum(counts[row] for row in alone) + sum(back.values())
        return _RowCounts(gone, back, sorted(alone))

    def _reinsert(self, brought: Sequence[ChunkColumn], back: Mapping[int, int]) -> str:
        names = ", ".join(column.quoted for column in brought)
        values = ", ".join(f"n.{column.quoted}" for column in brought)
        rows = " UNION ALL ".join(
            f"SELECT {row} AS i, {copies} AS copies" for row, copies in back.items()
        )
        numbers = " UNION ALL ".join(
            f"SELECT {number} AS k" for number in range(1, max(back.values()) + 1)
        )
        return (
            f"INSERT INTO {self._target} ({names}) SELECT {values} FROM {self._scratch} n JOIN"
            f" ({rows}) AS back ON back.i = n.{self._row} JOIN ({numbers}) AS numbers ON numbers.k"
            " <= back.copies"
        )

    def _joined(self, columns: Sequence[ChunkColumn]) -> str:
        """Return the join of the target, read from end to end, with the rows `n` that are equal.

        An index of its own wouldn't help: what it has many of, such as NULL, would be compared
        with as many.
        """
        target = self._target  # by its whole name: an alias in a DELETE wants a default database
        same = [f"{column.exact(target)} <=> {column.exact('n')}" for column in columns]
        condition = " AND ".join([f"n.{_HASH} = {_hash_of(columns, target)}", *same])
        return f"{target} STRAIGHT_JOIN {self._scratch} n FORCE INDEX ({_HASH}) ON {condition}"


def _may_differ_condition(columns: _ListedColumns) -> str:
    """Return the condition that rows which equal one of `n` may differ from it.

    0.0 equals -0.0, of JSON 1.0 equals 1, and other columns hold any value.
    """
    if not columns.are_all or any(column.data_type == "json" for column in columns.brought):
        return "1"
    zeros = [
        f"COALESCE(n.{column.quoted} = 0, 0)"
        for column in columns.brought
        if column.data_type in ("float", "double")
    ]
    return " OR ".join(zeros) or "0"


def _parse_numbers(text: object) -> list[int]:
    """Return the numbers of a list, of which the last may be cut off."""
    text = text.decode() if isinstance(text, bytes) else str(text or "")
    return [int(each) for each in text.split(",") if each]


def _hash_of(columns: Sequence[ChunkColumn], table: str) -> str:
    return f"CRC32(CONCAT_WS('|', {', '.join(column.hashed(table) for column in columns)}))"

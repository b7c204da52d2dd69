"""Removes many rows of a table without a key at once, and exactly as many of each as it should.

The rows are loaded into a temporary table with columns as the target has them, and found by a hash of their values and
then by the values themselves, exactly. Of which as many are there as have to go, all go in one DELETE. Nothing tells
equal rows apart, so what is there more often, or seems to be missing, is left to a statement with a LIMIT for each row
that differs: what that doesn't find is missing. Two statements read the table once each, however many rows go. A table
that is much larger than what goes, and has an index, is left to those statements, too.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence

from errors import Signal
from etl.downstream import DownstreamError, LoadOutcome, MySQLSession
from etl.formats.sql_text import quote_name
from etl.sinks._chunk_columns import ChunkColumn, columns_there
from etl.steps import DeleteDetail, ListedRows, Step

_HASH = quote_name("sluice_hash")
_MUCH_LARGER = 1000
"""Of a table with so many rows for each that goes, and an index, nothing is read from end to end."""
_SIZE = (
    "SELECT TABLE_ROWS FROM information_schema.TABLES t WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND EXISTS (SELECT"
    " 1 FROM information_schema.STATISTICS i WHERE i.TABLE_SCHEMA = t.TABLE_SCHEMA AND i.TABLE_NAME = t.TABLE_NAME)"
)


class _NotAtOnceError(Signal):
    """These rows can't be looked for at once."""


def statements_of(step: Step) -> list[bytes]:
    """The statements of a delete step, one or more."""
    payload, listed = bytes(step.payload), step.detail_of(DeleteDetail).listed
    if listed is None:
        return [payload]
    edges = list(itertools.accumulate(listed.lengths, initial=0))
    return [payload[begin:end] for begin, end in itertools.pairwise(edges)]


class ListedDelete:
    """One delete step that lists its rows. Every method raises DownstreamError."""

    def __init__(self, session: MySQLSession, step: Step, listed: ListedRows) -> None:
        self._session, self._step, self._listed = session, step, listed
        self._wrote = False
        self._target = f"{quote_name(step.schema)}.{quote_name(step.table)}"
        self._scratch = f"{quote_name(step.schema)}.{quote_name('sluice_gone_' + secrets.token_hex(4))}"
        self._row, self._times = (quote_name(name) for name in listed.layout.columns[:2])

    def execute(self) -> int | None:
        """Remove the rows; how many were removed. None if others than those that were looked at went."""
        affected: int | None = 0
        alone: Sequence[int] = range(len(self._listed.counts))
        try:
            affected, alone = self._at_once()
        except _NotAtOnceError:
            pass
        except DownstreamError as error:
            if error.transient or self._wrote:
                raise
        if affected is None:
            return None
        statements = statements_of(self._step)
        return affected + sum(self._session.execute(statements[row]) for row in alone)

    def _at_once(self) -> tuple[int | None, Sequence[int]]:
        """How many rows went, and the numbers of those that are left to a statement each."""
        columns = self._columns()
        try:
            self._load(columns)
            expected, alone = self._count(columns)
            self._wrote = True
            if alone:
                numbers = ", ".join(map(str, alone))
                self._session.execute(f"DELETE FROM {self._scratch} WHERE {self._row} IN ({numbers})")
            affected = self._session.execute(f"DELETE {self._target} FROM {self._joined(columns)}") if expected else 0
        finally:
            if self._session.is_connected:
                self._session.query(f"DROP TEMPORARY TABLE IF EXISTS {self._scratch}")
        return affected if affected == expected else None, alone

    def _columns(self) -> list[ChunkColumn]:
        if not self._session.dialect.loads_in_transactions:
            raise _NotAtOnceError
        place = self._step.schema, self._step.table
        sizes = self._session.query(_SIZE, place)
        if sizes and int(sizes[0][0] or 0) > _MUCH_LARGER * len(self._listed.counts):
            raise _NotAtOnceError
        there = {column.name.lower(): column for column in columns_there(self._session, *place)}
        brought = [name.lower() for name in self._listed.layout.columns[2:]]
        found = [there[name] for name in brought if name in there]
        if len(found) < len(brought) or any(column.is_computed for column in found):
            raise _NotAtOnceError
        return found

    def _load(self, columns: Sequence[ChunkColumn]) -> None:
        session, listed = self._session, self._listed
        own = f"{self._row} INT NOT NULL, {self._times} BIGINT NOT NULL, {_HASH} BIGINT NOT NULL DEFAULT 0"
        definitions = ", ".join(column.definition for column in columns)
        session.execute(f"CREATE TEMPORARY TABLE {self._scratch} ({own}, {definitions}, KEY ({_HASH})) ENGINE=InnoDB")
        text = memoryview(self._step.payload)[sum(listed.lengths) :]
        outcome = session.load(self._scratch, listed.layout, text)
        if outcome != LoadOutcome(len(listed.counts), 0, 0, 0):
            raise _NotAtOnceError
        session.execute(f"UPDATE {self._scratch} n SET {_HASH} = {_hash_of(columns, 'n')}")

    def _count(self, columns: Sequence[ChunkColumn]) -> tuple[int, Sequence[int]]:
        """How many rows are to go at once, and which are left."""
        counted = (
            f"SELECT n.{self._row} AS i, n.{self._times} AS wanted, COUNT(*) AS found FROM {self._joined(columns)}"
        )
        counted += f" GROUP BY n.{self._row}, n.{self._times}"
        ((rows, same),) = self._session.query(
            f"SELECT COUNT(*), COALESCE(SUM(wanted = found), 0) FROM ({counted}) AS counted"
        )
        counts = self._listed.counts
        if int(rows) == int(same) == len(counts):
            return sum(counts), ()
        at_once = [
            int(row) for (row,) in self._session.query(f"SELECT i FROM ({counted}) AS counted WHERE wanted = found")
        ]
        return sum(counts[row] for row in at_once), sorted(set(range(len(counts))) - set(at_once))

    def _joined(self, columns: Sequence[ChunkColumn]) -> str:
        """The target, read from end to end, with the rows `n` that are equal. An index of its own wouldn't help: what
        it has many of, such as NULL, would be compared with as many.
        """
        target = self._target  # by its whole name: an alias in a DELETE wants a default database
        same = [f"{column.exact(target)} <=> {column.exact('n')}" for column in columns]
        condition = " AND ".join([f"n.{_HASH} = {_hash_of(columns, target)}", *same])
        return f"{target} STRAIGHT_JOIN {self._scratch} n FORCE INDEX ({_HASH}) ON {condition}"


def _hash_of(columns: Sequence[ChunkColumn], table: str) -> str:
    return f"CRC32(CONCAT_WS('|', {', '.join(column.hashed(table) for column in columns)}))"

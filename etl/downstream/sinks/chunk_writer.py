"""Write a chunk of upstream rows (`sluice.relay.aligned_chunks`) in the open transaction.

The rows are loaded into a temporary table of the session, then compared with what is there and
written by statements over sets. What each statement changes is counted, and in the end every row
of the chunk is looked for, value by value, and nothing else may be in its range.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.formats.sql_text import literal, quote_name, quote_table
from sluice.etl.changes.rules import commit_time, source_condition
from sluice.etl.changes.steps import HoldAsBytes, Step
from sluice.etl.display_units import counted
from sluice.etl.downstream import (
    ChunkResult,
    DownstreamError,
    LoadOutcome,
    MySQLSession,
    engines_without_transactions,
)
from sluice.etl.downstream.ddl import hold_as_bytes
from sluice.etl.downstream.sinks._chunk_columns import ChunkColumns, ChunkDoesNotFit
from sluice.relay import AlignedChunk
from sluice.relay.aligned_chunks import COMPARE, MISSING
from sluice.tidb.schema import Table

_STATE_COLUMN = "`sluice state`"
_MISSING, _DIFFERS, _SAME = 0, 1, 2
_MAX_SHOWN = 5
_NEVER = "1 = 0"


@dataclass(frozen=True, slots=True)
class ChunkLoad:
    """Rows of a chunk: the text of one LOAD DATA statement.

    `sluice.etl.changes.formats.load_data` makes it.
    """

    layout: LoadLayout
    payload: Any
    rows: int
    warnings: int


@dataclass(frozen=True, slots=True)
class AlignedChunkRows:
    """The rows of an aligned chunk: `table` as it was read, under its name downstream."""

    aligned_chunk: AlignedChunk
    table: Table
    loads: Iterable[ChunkLoad]
    columns: tuple[str, ...]
    """Names of the columns that the loads bring."""
    hex_columns: frozenset[str] = frozenset()
    """Columns of which some load brings bytes in place of text."""


class ChunkWriter:
    """One chunk: `prepare` before the transaction, `write` in it, `close` afterwards.

    Raises ChunkDoesNotFit and DownstreamError.
    """

    def __init__(self, session: MySQLSession, chunk: AlignedChunkRows) -> None:
        self._session = session
        self._chunk = chunk
        self._asked = chunk.aligned_chunk
        self._target = quote_table(chunk.table)
        gone = chunk.table.gone_column
        self._mark = f"{self._target}.{quote_name(gone)}" if gone else ""
        self._history = chunk.table.history
        scratch = quote_name(f"sluice_chunk_{secrets.token_hex(4)}")
        self._scratch = f"{quote_name(chunk.table.schema_name)}.{scratch}"
        self._columns: ChunkColumns | None = None
        self._rows = 0

    def prepare(self) -> None:
        """Load the rows into a temporary table. Commits what is open."""
        chunk, session = self._chunk, self._session
        engine = engines_without_transactions(
            session, [(chunk.table.schema_name, chunk.table.name)]
        )[0]
        if engine:
            raise ChunkDoesNotFit(
                f"{chunk.table.full_name} on {session.address} is in the storage engine {engine}"
            )
        if self._asked.how != COMPARE:
            self._hold_bytes()
        self._columns = columns = ChunkColumns.load(session, chunk.table, chunk.columns)
        self._check_extent(columns)
        session.execute(columns.scratch(self._scratch, _STATE_COLUMN))
        for load in chunk.loads:
            self._load(load, columns)

    def write(self) -> ChunkResult:
        """Do what is asked for."""
        assert self._columns is not None
        if not self._columns.key:
            return self._write_as_multiset(self._columns)
        return self._write_by_key(self._columns)

    def close(self) -> None:
        """Drop the temporary table, unless it went with its session."""
        if self._columns is not None and self._session.is_connected:
            self._session.query(f"DROP TEMPORARY TABLE IF EXISTS {self._scratch}")

    # Before the transaction

    def _hold_bytes(self) -> None:
        text = {column.name for column in self._chunk.table.columns if column.kind == "text"}
        names = sorted(self._chunk.hex_columns & text)
        if names:
            at_ts, table = self._asked.at_ts, self._chunk.table
            detail = HoldAsBytes(tuple(names), at_ts)
            hold_as_bytes(self._session, Step(detail, at_ts, table.schema_name, table.name))

    def _check_extent(self, columns: ChunkColumns) -> None:
        asked, table = self._asked, self._chunk.table
        if columns.key:
            columns.check_order(self._session, table, asked.key)
        elif asked.condition or asked.listed:
            raise ChunkDoesNotFit(
                f"{table.full_name} has no key: it can only be brought as a whole"
            )
        elif asked.how == MISSING:
            raise ChunkDoesNotFit(
                f"{table.full_name} has no key that shows which rows are missing: replace them"
            )

    def _load(self, load: ChunkLoad, columns: ChunkColumns) -> None:
        layout = replace(load.layout, left_out=columns.left_out(load.layout.columns))
        outcome = self._session.load(self._scratch, layout, load.payload, strict=not load.warnings)
        expected = LoadOutcome(load.rows, 0, 0, load.warnings)
        if outcome.records < 0:
            expected = replace(expected, records=-1, deleted=load.rows)
        if outcome != expected:
            warnings = (
                "; ".join(message for _, _, message in self._session.warnings()[:3])
                if outcome.warnings
                else ""
            )
            raise ChunkDoesNotFit(
                f"{self._chunk.table.full_name}: {outcome}, {expected} expected {warnings}".rstrip()
            )
        self._rows += load.rows

    # In it, by key

    def _write_by_key(self, columns: ChunkColumns) -> ChunkResult:
        self._check_range()
        self._compare(columns)
        found = dict(
            self._session.query(
                f"SELECT {_STATE_COLUMN}, COUNT(*) FROM {self._scratch} GROUP BY {_STATE_COLUMN}"
            )
        )
        missing, differing, same = (
            int(found.get(state, 0)) for state in (_MISSING, _DIFFERS, _SAME)
        )
        extra = 0 if self._asked.how == MISSING else self._count(self._target, self._extra(columns))
        result = ChunkResult(self._rows, same, examples=self._examples(columns, extra))
        if self._asked.how == MISSING:
            self._insert(columns, f"{_STATE_COLUMN} = {_MISSING}", missing)
            return replace(result, inserted=missing, kept=differing)
        if not self._asked.listed:
            self._expect(
                "in their range",
                self._count(self._target, f"{self._inside}{self._and_living}"),
                differing + same + extra,
            )
        result = replace(result, inserted=missing, replaced=differing, deleted=extra)
        if self._asked.how == COMPARE or not result.differing:
            return result
        self._delete(columns, differing + extra)
        displaced = self._insert(columns, f"{_STATE_COLUMN} < {_SAME}", missing + differing)
        self._prove(columns)
        return replace(result, displaced=displaced)

    def _check_range(self) -> None:
        """Check that rows read in an upstream range are in it by the downstream's order, too."""
        if self._asked.condition and not self._asked.listed:
            inside = self._count(self._scratch, self._inside)
            if inside != self._rows:
                raise ChunkDoesNotFit(
                    f"{self._chunk.table.full_name}: of {counted(self._rows, 'row')} that the"
                    f" upstream has where {self._asked.condition[:300]}, {inside:,} in the order of"
                    f" {self._session.address}: its keys are ordered in another way. Copy the whole"
                    " table at once"
                )

    def _compare(self, columns: ChunkColumns) -> None:
        """Note for each row of the chunk whether it is there."""
        for state, condition in ((_DIFFERS, columns.keys_equal), (_SAME, columns.same)):
            self._session.execute(
                f"UPDATE {self._scratch} SET {_STATE_COLUMN} = {state} WHERE EXISTS (SELECT 1 FROM"
                f" {self._target} WHERE {condition(self._target, self._scratch)}{self._and_living})"
            )

    def _extra(self, columns: ChunkColumns) -> str:
        """Return the condition of the rows that are there and not upstream."""
        if self._asked.listed:
            return _NEVER
        key = columns.keys_equal(self._scratch, self._target)
        return (
            f"{self._inside}{self._and_living} AND NOT EXISTS (SELECT 1 FROM {self._scratch} WHERE"
            f" {key})"
        )

    def _delete(self, columns: ChunkColumns, expected: int) -> None:
        """Delete rows that aren't upstream, and rows that are there with other values.

        Where rows stay that are gone upstream, the former are marked with the chunk's time; where
        versions are kept, both.
        """
        deleted = 0
        when = literal(commit_time(self._asked.at_ts))
        if not self._asked.listed:
            verb = (
                f"UPDATE {self._target} SET {self._mark} = {when}"
                if self._mark
                else f"DELETE FROM {self._target}"
            )
            deleted += self._session.execute(f"{verb} WHERE {self._extra(columns)}")
        # From the chunk's rows to the table's, by the key: the table may be large.
        joined = (
            f"{self._scratch} STRAIGHT_JOIN {self._target} ON"
            f" {columns.keys_equal(self._scratch, self._target)}"
        )
        verb = (
            f"UPDATE {joined} SET {self._mark} = {when}"
            if self._history
            else f"DELETE {self._target} FROM {joined}"
        )
        deleted += self._session.execute(
            f"{verb} WHERE {_STATE_COLUMN} = {_DIFFERS}{self._and_living}"
        )
        self._expect("removed", deleted, expected)

    def _insert(self, columns: ChunkColumns, which: str, expected: int) -> int:
        """Add rows of the chunk; how many others went for it."""
        if not expected:
            return 0
        if self._mark and not self._history:  # rows that were deleted, and are there again
            self._session.execute(
                f"DELETE {self._target} FROM {self._scratch} STRAIGHT_JOIN {self._target} ON"
                f" {columns.keys_equal(self._scratch, self._target)} WHERE ({which}) AND"
                f" {self._mark} IS NOT NULL"
            )
        may_displace = self._asked.is_whole and self._asked.how != MISSING and not self._history
        names, values = columns.names(), columns.names()
        if self._history:  # versions that begin at the chunk's time
            since, _, commit_ts = map(quote_name, self._history)
            names += f", {since}, {commit_ts}"
            values += f", {literal(commit_time(self._asked.at_ts))}, {self._asked.at_ts}"
        try:
            written = self._session.execute(
                f"{'REPLACE' if may_displace else 'INSERT'} INTO {self._target} ({names}) SELECT"
                f" {values} FROM {self._scratch} WHERE {which}"
            )
        except DownstreamError as error:
            if error.code != server_errors.DUPLICATE_ENTRY:
                raise
            raise ChunkDoesNotFit(
                f"{self._chunk.table.full_name}: {error.message}: another row, outside of what was"
                " asked for, holds a value that must be unique and belongs to one of these rows"
                " upstream. Replace the whole table"
            ) from error
        if not may_displace:
            self._expect("added", written, expected)
        return written - expected

    def _prove(self, columns: ChunkColumns) -> None:
        """Check that each row of the chunk is there, value by value, and no other in its range."""
        same = columns.same(self._target, self._scratch)
        found = self._count(
            self._scratch, f"EXISTS (SELECT 1 FROM {self._target} WHERE {same}{self._and_living})"
        )
        self._expect("there in the end", found, self._rows)
        if not self._asked.listed:
            self._expect(
                "in their range in the end",
                self._count(self._target, f"{self._inside}{self._and_living}"),
                self._rows,
            )

    # In it, without a key

    def _write_as_multiset(self, columns: ChunkColumns) -> ChunkResult:
        names = [f"c{number}" for number in range(len(columns.written))]

        def each(table: str, count: int) -> str:
            values = ", ".join(
                f"{column.grouped(table)} AS {name}"
                for column, name in zip(columns.written, names, strict=True)
            )
            return f"SELECT {count} AS n, {values} FROM {table}"

        ((more, less),) = self._session.query(
            "SELECT COALESCE(SUM(GREATEST(n, 0)), 0), COALESCE(SUM(GREATEST(-n, 0)), 0) FROM"
            f" (SELECT SUM(n) AS n FROM ({each(self._scratch, 1)} UNION ALL"
            f" {each(self._target, -1)}) AS both_ GROUP BY {', '.join(names)}) AS sums"
        )
        inserted, deleted = int(more), int(less)
        result = ChunkResult(self._rows, self._rows - inserted, inserted, 0, deleted)
        if self._asked.how == COMPARE or not result.differing:
            return result
        self._session.execute(f"DELETE FROM {self._target}")
        added = self._session.execute(
            f"INSERT INTO {self._target} ({columns.names()}) SELECT {columns.names()} FROM"
            f" {self._scratch}"
        )
        self._expect("added", added, self._rows)
        self._expect("there in the end", self._count(self._target, "1 = 1"), self._rows)
        return result

    # Inside

    @property
    def _inside(self) -> str:
        """Return the condition of the rows that the chunk is about."""
        inside = f"({self._asked.condition})" if self._asked.condition else "1 = 1"
        source = self._chunk.table.source_column
        return inside if source is None else f"{inside} AND {source_condition(source)}"

    @property
    def _and_living(self) -> str:
        """Return what leaves out rows that are marked as deleted, behind another condition."""
        return f" AND {self._mark} IS NULL" if self._mark else ""

    def _count(self, table: str, condition: str) -> int:
        return int(self._session.query(f"SELECT COUNT(*) FROM {table} WHERE {condition}")[0][0])

    def _expect(self, what: str, found: int, expected: int) -> None:
        if found != expected:
            raise ChunkDoesNotFit(
                f"{self._chunk.table.full_name} on {self._session.address}:"
                f" {counted(found, 'row')} {what}, {expected:,} expected: it holds rows twice,"
                f"{' or two open versions of one,' if self._history else ''} or text that differs"
                " upstream is the same under its collation"
            )

    def _examples(self, columns: ChunkColumns, extra: int) -> tuple[str, ...]:
        """Return the keys of some of the rows that differ."""
        kept = "kept, differs" if self._asked.how == MISSING else "differs"
        found: list[str] = []
        for what, table, condition in (
            ("missing", self._scratch, f"{_STATE_COLUMN} = {_MISSING}"),
            (kept, self._scratch, f"{_STATE_COLUMN} = {_DIFFERS}"),
            ("not upstream", self._target, self._extra(columns) if extra else _NEVER),
        ):
            keys = ", ".join(column.quoted for column in columns.key)
            rows = self._session.query(
                f"SELECT {keys} FROM {table} WHERE {condition} LIMIT {_MAX_SHOWN}"
            )
            found += [f"{what}: {_shown_row(columns, row)}" for row in rows]
        return tuple(found)


def _shown_row(columns: ChunkColumns, row: Iterable[Any]) -> str:
    pairs: Mapping[str, Any] = {
        column.name: value for column, value in zip(columns.key, row, strict=True)
    }
    return ", ".join(f"{name}={value!s:.60}" for name, value in pairs.items())

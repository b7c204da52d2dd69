"""Convert columns that are given another type: compute their values, then exchange the column.

The new values are put into a column of the new type, which takes the old one's place. The
statement itself then finds the type as it is to be.

For each column two tables in the recycle schema, and a third for the DDL:

    old_<job>_<column>   k: SHA-256 of a value, v: the value; every distinct value, by the server
    new_<job>_<column>   k, v: what it becomes; loaded, rows find it by the hash of their value
    swapped_<job>        c: a column's id; written before the new column takes the old one's place

Nothing but these is touched before every value has been computed. After a crash the tables show
how far it was: with the new column beside the old one, all is done again from the old values;
without it, and with the column's id in `swapped`, that column is done. `swapped` goes last, when
the whole DDL has been executed. No key of the table is needed, and memory is bounded by a page of
values.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.load_data import format_load
from sluice.etl.changes.formats.sql_text import quote_name, quote_table
from sluice.etl.changes.formats.table_fallbacks import holds_bytes
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.ddl._conversions import (
    CannotConvert,
    Conversion,
    computed,
    conversions,
    value_expression,
)
from sluice.etl.downstream.ddl._generate import column_definition
from sluice.etl.downstream.ddl._new_column import NewColumn, bare_column
from sluice.etl.downstream.ddl._session import ddl_session
from sluice.etl.downstream.ddl._state import actual_columns, moving_columns
from sluice.tidb import column_types
from sluice.tidb.conversion import shown
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table
from sluice.tidb.time_zone import session_of

_PAGE_BYTES, _PAGE_ROWS = 32 << 20, 5_000
_HASH = Column(
    1, "k", 0, column_types.CHAR, column_types.FLAG_NOT_NULL, 32, charset="binary", collate="binary"
)


class ColumnConverter:
    """Convert the columns of DDL jobs in one session.

    Every method raises DownstreamError; UnconvertibleError before anything changed.
    """

    def __init__(self, session: MySQLSession) -> None:
        self._session = session
        self._places = _ConversionTables(session.recycle_schema)

    def interrupted(self, ddl: DdlJob) -> bool:
        """Return whether a conversion by this DDL was begun and not finished."""
        return (
            bool(conversions(ddl))
            and not self._session.dialect.is_tidb
            and self._swapped(ddl) is not None
        )

    def convert(self, ddl: DdlJob) -> list[str]:
        """Convert what is left to be converted; warnings."""
        wanted = conversions(ddl)
        if not wanted or self._session.dialect.is_tidb:  # which converts as TiDB does
            return []
        done = self._swapped(ddl)
        if done is None:
            self._session.execute(
                f"CREATE DATABASE IF NOT EXISTS {quote_name(self._session.recycle_schema)}"
            )
            self._session.execute(
                f"CREATE TABLE {self._places.swapped(ddl)} (c BIGINT PRIMARY KEY) ENGINE=InnoDB"
            )
        else:
            self._forget(wanted)
        left = [
            c
            for c in wanted
            if c.change.new.id not in (done or ()) or NewColumn(self._session, c).exists()
        ]
        taken = {}
        try:
            for conversion in left:
                taken[conversion.title] = self._compute(conversion, ddl)
        except CannotConvert:
            self._forget(left)
            if not done and not any(NewColumn(self._session, c).exists() for c in left):
                self.finish(ddl)
            raise
        warnings = [
            warning for conversion in left for warning in self._apply_values(conversion, ddl)
        ]
        return warnings + [
            f"{title}: FLOATs shown as {', '.join(sorted(alike)[:5])} were taken for exactly that;"
            " more of their digits the downstream doesn't hold"
            for title, alike in taken.items()
            if alike
        ]

    def finish(self, ddl: DdlJob) -> None:
        """Drop the working tables; the whole DDL must have been executed."""
        wanted = conversions(ddl)
        if wanted and not self._session.dialect.is_tidb:
            self._session.execute(
                f"DROP TABLE IF EXISTS {self._places.names(wanted)}, {self._places.swapped(ddl)}"
            )

    def _swapped(self, ddl: DdlJob) -> set[int] | None:
        try:
            return {
                int(c) for (c,) in self._session.query(f"SELECT c FROM {self._places.swapped(ddl)}")
            }
        except DownstreamError as error:
            if error.code not in (server_errors.NO_SUCH_TABLE, server_errors.UNKNOWN_DATABASE):
                raise
            return None

    def _compute(self, conversion: Conversion, ddl: DdlJob) -> set[str]:
        """Fill the table of new values; texts of values that were taken for what they look like."""
        new = conversion.change.new
        table, name = quote_table(conversion.change.before), quote_name(conversion.change.old.name)
        if new.not_null and self._session.query(
            f"SELECT 1 FROM {table} WHERE {name} IS NULL LIMIT 1"
        ):
            raise CannotConvert(
                f"{conversion.title}: the value NULL, for which TiDB put in a value of its"
                " clock or its mode"
            )
        results = self._places.tables(conversion)[1]
        with ddl_session(self._session):
            definition = column_definition(results.columns[1], self._session.dialect)
            self._session.execute(
                f"CREATE TABLE {quote_table(results)} (k BINARY(32) PRIMARY KEY, {definition})"
                " ENGINE=InnoDB"
            )
        session, taken = session_of(ddl), set()
        for keys, raw in self._values(conversion):
            try:
                found, alike = computed(conversion, raw, session)
            except CannotConvert as error:
                raise CannotConvert(f"{error}{self._row_with(conversion, error.raw)}") from error
            taken |= alike
            self._load(conversion, keys, raw, found)
        return taken

    def _load(
        self, conversion: Conversion, keys: list[bytes], raw: list[bytes], found: pa.Array
    ) -> None:
        results, at = self._places.tables(conversion)[1], 0
        for chunk in format_load(
            results, {"k": pa.array(keys, pa.large_binary()), "v": found}, len(raw)
        ):
            these = raw[at : at + chunk.rows]
            try:
                outcome = self._session.load(
                    quote_table(results), chunk.layout, chunk.payload, strict=not chunk.warnings
                )
            except DownstreamError as error:
                if error.transient:
                    raise
                raise self._refused(
                    conversion,
                    "a value that TiDB has now is refused by the downstream",
                    str(error),
                    these,
                ) from error
            if outcome.warnings != chunk.warnings:
                warning = str(self._session.warnings()[:3])
                raise self._refused(
                    conversion, "new values are changed by the downstream", warning, these
                )
            at += chunk.rows
        self._session.commit()

    def _refused(
        self, conversion: Conversion, what: str, warning: str, raw: list[bytes]
    ) -> CannotConvert:
        """Return the error; `raw` are the old values, which the server names by their numbers."""
        number = re.search(r"at row (\d+)", warning)
        if number is None or not 1 <= int(number[1]) <= len(raw):
            return CannotConvert(f"{conversion.title}: {what}: {warning}")
        value = raw[int(number[1]) - 1]
        return CannotConvert(
            f"{conversion.title}: the value {shown(value)}: {what}:"
            f" {warning}{self._row_with(conversion, value)}",
            value,
        )

    def _row_with(self, conversion: Conversion, raw: bytes | None) -> str:
        """Return, for messages, the key of a row with such a value."""
        table, old = conversion.change.before, conversion.change.old
        if raw is None or not table.primary_key:
            return ""
        match = (
            f"SHA2({self._expression(conversion, quote_name(old.name))}, 256) ="
            f" '{hashlib.sha256(raw).hexdigest()}'"
        )
        keys = ", ".join(map(quote_name, table.primary_key))
        found = self._session.query(
            f"SELECT {keys} FROM {quote_table(table)} WHERE {match} LIMIT 1"
        )
        if not found:
            return ""
        key = zip(table.primary_key, found[0], strict=True)
        return f" (in the row {', '.join(f'{name}={value!r}' for name, value in key)})"

    def _expression(self, conversion: Conversion, reference: str) -> str:
        """Return `value_expression` for the form in which the downstream has the column."""
        old = conversion.change.old
        actual = next(
            c
            for c in actual_columns(self._session, conversion.change.before)
            if folded(c.name) == folded(old.name)
        )
        return reference if holds_bytes(old, actual.data_type) else value_expression(old, reference)

    def _values(self, conversion: Conversion) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield (hashes, values), every distinct value but NULL, a page at a time."""
        old, table = conversion.change.old, quote_table(conversion.change.before)
        name = quote_name(old.name)
        expression = self._expression(conversion, name)
        # short ones; a small table is read at once
        if old.kind != "json" and old.tp not in column_types.LONG:
            rows = self._session.query(
                f"SELECT {expression} FROM {table} WHERE {name} IS NOT NULL LIMIT {_PAGE_ROWS + 1}"
            )
            if len(rows) <= _PAGE_ROWS:
                found = sorted(
                    {
                        value if isinstance(value, bytes) else str(value).encode()
                        for (value,) in rows
                    }
                )
                if found:
                    yield [hashlib.sha256(value).digest() for value in found], found
                return
        values = self._places.tables(conversion)[0]
        self._session.execute(
            f"CREATE TABLE {quote_table(values)} (k BINARY(32) PRIMARY KEY, v LONGBLOB NOT NULL)"
            " ENGINE=InnoDB"
        )
        self._session.execute(
            f"INSERT IGNORE INTO {quote_table(values)} SELECT UNHEX(SHA2({expression}, 256)),"
            f" {expression} FROM {table} WHERE {name} IS NOT NULL"
        )
        self._session.commit()
        yield from self._batches(quote_table(values))

    def _batches(self, values: str) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield (hashes, values) of a table of them, in the order of the hashes."""
        ((longest,),) = self._session.query(f"SELECT COALESCE(MAX(LENGTH(v)), 0) FROM {values}")
        size = max(1, min(_PAGE_ROWS, _PAGE_BYTES // (int(longest) + 64)))
        last = b""
        while rows := self._session.query(
            f"SELECT k, v FROM {values} WHERE k > x'{last.hex()}' ORDER BY k LIMIT {size}"
        ):
            yield [bytes(k) for k, _ in rows], [bytes(v) for _, v in rows]
            last = bytes(rows[-1][0])

    def _apply_values(self, conversion: Conversion, ddl: DdlJob) -> list[str]:
        """Add the new column, fill it, and let it take the old one's place; warnings."""
        change = conversion.change
        table, scratch = quote_table(change.before), quote_name(conversion.scratch)
        try:
            if not NewColumn(self._session, conversion).exists():
                NewColumn(self._session, conversion).add()
            moving = (
                own
                for own in moving_columns(self._session, change.before)
                if own not in (quote_name(change.old.name), scratch)
            )
            still = "".join(f", t.{own} = t.{own}" for own in moving)
            results = self._places.tables(conversion)[1]
            value = f"t.{quote_name(change.old.name)}"
            match = f"r.k = UNHEX(SHA2({self._expression(conversion, value)}, 256))"
            with self._lenient():
                self._session.execute(
                    f"UPDATE {table} t SET t.{scratch} = (SELECT r.v FROM {quote_table(results)} r"
                    f" WHERE {match}){still}"
                )
            lost = self._session.query(
                f"SELECT 1 FROM {table} t LEFT JOIN {quote_table(results)} r ON {match} WHERE"
                f" {value} IS NOT NULL AND r.k IS NULL LIMIT 1"
            )
            if lost:
                raise DownstreamError(
                    server_errors.RECORD_CHANGED,
                    f"{conversion.title}: rows were written to the table meanwhile",
                )
            self._session.execute(
                f"INSERT IGNORE INTO {self._places.swapped(ddl)} VALUES ({change.new.id})"
            )
            self._session.commit()
            return NewColumn(self._session, conversion).replace_old()
        except DownstreamError as error:
            if not error.transient:
                self._undo(conversion, ddl)
            raise

    @contextlib.contextmanager
    def _lenient(self) -> Iterator[None]:
        """Assign in a session that isn't strict; both columns have one type, so nothing converts.

        But servers check an ENUM's empty value again, and rounded bounds.
        """
        mode = str(self._session.query("SELECT @@SESSION.sql_mode")[0][0])
        self._session.query(
            "SET SESSION sql_mode = REPLACE(REPLACE(@@sql_mode, 'STRICT_TRANS_TABLES', ''),"
            " 'STRICT_ALL_TABLES', '')"
        )
        try:
            yield
        finally:
            # a lost connection has no session to be put right
            with contextlib.suppress(DownstreamError):
                self._session.query("SET SESSION sql_mode = %s", (mode,))

    def _undo(self, conversion: Conversion, ddl: DdlJob) -> None:
        """Restore the table after the server refused the new column."""
        with contextlib.suppress(DownstreamError):
            self._session.rollback()
            if NewColumn(self._session, conversion).exists():
                self._session.execute(
                    f"DELETE FROM {self._places.swapped(ddl)} WHERE c = {conversion.change.new.id}"
                )
                self._session.commit()
                table = quote_table(conversion.change.before)
                self._session.execute(
                    f"ALTER TABLE {table} DROP COLUMN {quote_name(conversion.scratch)}"
                )

    def _forget(self, gone: Sequence[Conversion]) -> None:
        self._session.execute(f"DROP TABLE IF EXISTS {self._places.names(gone)}")


class _ConversionTables:
    """The names of the tables that conversions use."""

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def names(self, of: Sequence[Conversion]) -> str:
        """Return the names of these conversions' tables, for a statement."""
        return ", ".join(
            quote_table(table) for conversion in of for table in self.tables(conversion)
        )

    def swapped(self, ddl: DdlJob) -> str:
        """Return the name of the table that lists the columns which are done."""
        name = f"swapped_{ddl.job_id}"
        return f"{quote_name(self._schema)}.{quote_name(name)}"

    def tables(self, conversion: Conversion) -> tuple[Table, Table]:
        """Return the table of old values and that of new ones."""
        number = f"{conversion.job_id}_{conversion.change.new.id}"
        value = replace(bare_column(conversion.change.new, "v"), offset=1)
        text = Column(2, "v", 1, column_types.LONGTEXT, charset="binary", collate="binary")
        return (
            Table(0, 0, self._schema, f"old_{number}", (_HASH, text)),
            Table(0, 0, self._schema, f"new_{number}", (_HASH, value)),
        )

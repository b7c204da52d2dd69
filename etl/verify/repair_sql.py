"""Write the SQL that makes the downstream's rows what the upstream's are, for people to run.

Rows that aren't upstream's go first, so that the unique values that they hold are free; then the
upstream's come. Rows to delete are selected by their key and by the values that were found in them.
So a row that has changed since stays as it is, and the counts at the end show that. What databases
compute themselves isn't written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.deletes import delete_head
from sluice.etl.changes.formats.sql_columns import (
    BYTEWISE_KINDS,
    invalid_utf8_mask,
    join,
    key_conditions,
    row_conditions,
)
from sluice.etl.changes.formats.sql_scripts import grouped_rows, inserts, printable_ascii
from sluice.etl.changes.formats.sql_text import literal, quote_name, quote_table
from sluice.etl.changes.rules import commit_time, history_columns
from sluice.etl.changes.write_plans.history_versions import version_values
from sluice.etl.display_units import counted
from sluice.etl.verify.row_diff import key_of, keys_bytes, one_array
from sluice.tidb import column_types, tso
from sluice.tidb.schema import Column, Table

__all__ = ["RepairStatements", "repair_script"]

_MODE = "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"


@dataclass(frozen=True, slots=True)
class RepairStatements:
    """A table whose rows differ.

    `place`: the table under its name downstream; `gone`: rows that are downstream and aren't
    upstream's, `come`: rows of the upstream that aren't downstream; a row that is another is in
    both. `place.writable_columns` in types and texts of `sluice.tidb.rows.arrow_schema`. `ts`
    (TSO): when they were compared, the time with which a row is marked that is to stay as deleted.
    `more`: rows differ that aren't here.
    """

    place: Table
    gone: pa.Table
    come: pa.Table
    ts: int
    more: int = 0

    def clearing_statements(self) -> Iterator[bytes]:
        """Yield statements that remove rows marked as deleted whose keys come again.

        How many there are isn't known. Past versions stay, but for those that `ts` itself made.
        """
        if self.place.gone_column and self.come.num_rows:
            keys = key_conditions(self.key, [one_array(self.come[c.name]) for c in self.key])
            gone = f"{quote_name(self.place.gone_column)} IS NOT NULL AND {self._begun}(".encode()
            for group in grouped_rows(keys.to_pylist()):
                yield delete_head(self.place) + gone + b"\nOR ".join(group) + b")"

    def statements(self) -> Iterator[tuple[int, bytes]]:
        """Yield each statement with the number of its rows."""
        yield from self._deletes()
        rows = self.come.filter(pa.array(~self.unwritable))
        columns = list(self.place.writable_columns)
        arrays = [one_array(rows[column.name]) for column in columns]
        if self.place.history:
            stamps = np.full(rows.num_rows, self.ts, np.int64)
            values = version_values(self.place, stamps, stamps, np.zeros(rows.num_rows, bool))
            columns += history_columns(self.place)
            arrays += values.values()
        yield from inserts(self.place, columns, arrays)

    @property
    def unwritable(self) -> np.ndarray:
        """Return which of `come` no statement writes exactly (bool mask).

        Text that isn't utf-8, which TiDB takes where it doesn't check, and the element that an ENUM
        doesn't have.
        """
        found = np.zeros(self.come.num_rows, bool)
        for column in self.place.writable_columns:
            array = one_array(self.come[column.name])
            if column.kind in BYTEWISE_KINDS and (broken := invalid_utf8_mask(array)) is not None:
                found |= np.asarray(broken)
            if column.kind == "enum" and "" not in column.elems:
                found |= np.asarray(
                    pc.fill_null(pc.equal(array.cast(pa.large_binary()), b""), fill_value=False)
                )
        return found

    @property
    def key(self) -> list[Column]:
        """Return the key by which rows are found; [] if all their values are needed."""
        return key_of(self.place)

    def _deletes(self) -> Iterator[tuple[int, bytes]]:
        if not self.gone.num_rows:
            return
        conditions, begin = self._conditions(), delete_head(self.place)
        if not self.key:
            for condition, count in Counter(conditions).items():
                yield count, begin + condition + b" LIMIT %d" % count
            return
        if self.place.history:
            yield from self._closings(conditions)
            return
        if self.place.deletion_mark is not None:
            conditions, over = self._split(conditions)
            for group in grouped_rows([b"(" + condition + b")" for condition in over]):
                yield len(group), self._marking_head() + b"\nOR ".join(group)
        for group in grouped_rows([b"(" + condition + b")" for condition in conditions]):
            yield len(group), begin + b"\nOR ".join(group)

    def _split(self, conditions: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Return the conditions of rows that come again with other values, and of all others."""
        come = set(keys_bytes(self.place, self.come))
        parts: tuple[list[bytes], list[bytes]] = ([], [])
        for key, condition in zip(keys_bytes(self.place, self.gone), conditions, strict=True):
            parts[key not in come].append(condition)
        return parts

    def _closings(self, conditions: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield what ends open versions; one that begins at `ts` itself goes instead."""
        opened = f"{quote_name(self.place.gone_column)} IS NULL AND ".encode()
        for group in grouped_rows([b"(" + condition + b")" for condition in conditions]):
            wrong = b"(" + b"\nOR ".join(group) + b")"
            yield 0, delete_head(self.place) + opened + self._begun.encode() + wrong
            yield len(group), self._marking_head() + opened + wrong

    @property
    def _begun(self) -> str:
        """Return the condition, with AND, of versions that begin at `ts`; "" if none are kept."""
        history = self.place.history
        return f"{quote_name(history[2])} >= {self.ts} AND " if history else ""

    def _marking_head(self) -> bytes:
        return (
            f"UPDATE {quote_table(self.place)} SET {quote_name(self.place.gone_column)} ="
            f" {literal(commit_time(self.ts))} WHERE "
        ).encode()

    def _conditions(self) -> list[bytes]:
        key, columns = self.key, self.place.writable_columns
        names = {column.name for column in key}
        others = [_exact(column) for column in columns if column.name not in names]
        parts = [key_conditions([_exact(c) for c in key], self._arrays(key))] if key else []
        parts += [row_conditions(others, self._arrays(others))] if others else []
        parts += [
            _signs(column, one_array(self.gone[column.name]))
            for column in columns
            if column.kind in _SIGNED
        ]
        found: list[bytes] = join(*parts, separator=b" AND ").to_pylist()
        return found

    def _arrays(self, columns: Sequence[Column]) -> list[pa.Array]:
        arrays = [one_array(self.gone[column.name]) for column in columns]
        return [
            array.cast(pa.float64()) if pa.types.is_float32(array.type) else array
            for array in arrays
        ]


_SIGNED = ("double", "float")


def _signs(column: Column, array: pa.Array) -> pa.Array:
    """Return conditions on a zero's sign, which no comparison sees."""
    numbers = array.cast(pa.float64())
    text = b"LEFT(CAST(" + quote_name(column.name).encode() + b" AS CHAR),1)"
    negative = pa.array(np.signbit(numbers.to_numpy(zero_copy_only=False)))
    is_zero = pc.fill_null(pc.equal(numbers, 0.0), fill_value=False)
    signs = (pa.scalar(text + condition, pa.large_binary()) for condition in (b"='-'", b"<>'-'"))
    return pc.if_else(is_zero, pc.if_else(negative, *signs), pa.scalar(b"TRUE", pa.large_binary()))


def _exact(column: Column) -> Column:
    """Return a FLOAT column as a DOUBLE, so that all its digits are compared."""
    return replace(column, tp=column_types.DOUBLE) if column.kind == "float" else column


def repair_script(
    ts: int, checkpoint: tuple[str, int], tables: Sequence[RepairStatements]
) -> Iterator[bytes]:
    """Yield the script line by line, or statement by statement.

    `ts` (TSO): the checkpoint at which the tables were compared; `checkpoint`: the checkpoint
    table's full name, quoted, and the cluster's id. The script ends without COMMIT: the operator
    compares numbers first. Nothing that comes from rows or names stands in a comment as it is.
    """
    yield from (b"-- " + line.encode() for line in _heading(ts, tables))
    yield b"SET NAMES utf8mb4;"
    yield b"SET SESSION time_zone = '+00:00';"
    yield f"SET SESSION sql_mode = {literal(_MODE)};".encode()
    yield b"SET SESSION foreign_key_checks = 0;"
    yield b"SET @repaired = 0;"
    yield b"BEGIN;"
    table, cluster_id = checkpoint
    where = f"FROM {table} WHERE clusterID = {cluster_id}"
    yield f"SELECT checkPoint AS must_say_{ts} {where} FOR UPDATE;".encode()
    expected = 0
    for repair in tables:
        yield f"-- {printable_ascii(repair.place.full_name)}".encode()
        for statement in repair.clearing_statements():
            yield statement + b";"
        for rows, statement in repair.statements():
            expected += rows
            yield statement + b";"
            yield b"SET @repaired = @repaired + ROW_COUNT();"
    yield f"SELECT @repaired AS rows_repaired, {expected} AS rows_expected;".encode()
    yield (
        b"-- If they are the same, and the checkpoint was the one above: COMMIT. Else ROLLBACK, and"
        b" verify again."
    )
    yield b"-- Without either nothing is changed."


def _heading(ts: int, tables: Sequence[RepairStatements]) -> Iterator[str]:
    yield f"Makes the downstream what the upstream was at the checkpoint {tso.text(ts)}:"
    for repair in tables:
        left = int(repair.unwritable.sum())
        name = printable_ascii(repair.place.full_name)
        yield f"  {name}: {repair.gone.num_rows:,} rows go, {repair.come.num_rows - left:,} come"
        if left:
            yield (
                f"    {left:,} rows don't come: they hold text that isn't utf-8, or an ENUM's"
                " missing element, which no statement writes; `sluice verify --repair --apply`"
                " brings them"
            )
        if repair.more:
            yield (
                f"    {counted(repair.more, 'more row differs', 'more rows differ')}, not in here:"
                " verify again afterwards"
            )
    yield "For the downstream, at that checkpoint: `sluice pause` keeps it there."

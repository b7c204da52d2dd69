"""The changes of one table in one segment, reduced and as SQL."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl._sql_text import key_conditions, literal_column, quote_name, quote_table, row_conditions
from etl._steps import Step
from etl.load_format import format_load
from etl.net_effect import DELETE, INSERT, UPDATE, BrokenHistoryError, key_codes, net_effect, unchanged
from etl.shapes.segment import Timings
from upstream.rows import decode_deletes, decode_inserts, decode_updates
from upstream.schema import STATE_PUBLIC, Column, Table

ROW_ID = "_tidb_rowid"
_KEYS_A_STATEMENT = 1000
_STATEMENT_BYTES = 1 << 20
_NO_ROWS = np.zeros(0, np.int64)

Images = dict[str, pa.Array]


class ChangeError(ValueError):
    """Changes that can't be applied; names table, key and commit_ts."""


class TableChanges:
    """The net effect of a table's changes, given in order. Every row of the table is `schema`'s."""

    def __init__(self, table: Table, kinds: np.ndarray, rows: pa.LargeBinaryArray, commit_ts: np.ndarray, timings: Timings) -> None:
        """`kinds` int8, `rows` in TiDB's old row format, `commit_ts` int64: one entry a change. Raises ChangeError and the
        row codec's errors."""
        self.table = table
        self.first_ts, self.last_ts = int(commit_ts[0]), int(commit_ts[-1])
        self.changes = len(kinds)
        self._timings = timings
        started = time.perf_counter()
        self._old, self._new = _decode(table, kinds, rows)
        decoded = time.perf_counter()
        self._reduce(kinds, commit_ts)
        timings.decode += decoded - started
        timings.reduce += time.perf_counter() - decoded

    def _reduce(self, kinds: np.ndarray, commit_ts: np.ndarray) -> None:
        table, old, new = self.table, self._old, self._new
        identity = [ROW_ID] if table.handle_kind == "heap" else list(table.primary_key)
        columns = {column.name: column for column in table.stored_columns}
        old_keys = [_comparable(old[name], columns.get(name)) for name in identity]
        new_keys = [_comparable(new[name], columns.get(name)) for name in identity]
        try:
            effect = net_effect(kinds, *key_codes(old_keys, new_keys))
        except BrokenHistoryError as error:
            key = self._key_text(kinds, error.change, identity)
            raise ChangeError(
                f"table {table.full_name}, row {key}: {error} at commit_ts {int(commit_ts[error.change])}; the changes between "
                f"{self.first_ts} and {self.last_ts} contradict each other, so the relay log does not hold what the upstream did"
            ) from None
        stored = [column.name for column in table.stored_columns]
        same = unchanged([old[n] for n in stored], [new[n] for n in stored], effect.kept_old, effect.kept_new)
        kept_old, kept_new = effect.kept_old[~same], effect.kept_new[~same]
        # REPLACE may take a row's place only if it holds on to every unique value, else it could remove another row.
        in_place = self._in_place(kept_old, kept_new)
        self._remove = np.concatenate((effect.gone_old, kept_old[~in_place]))
        self._write = np.concatenate((effect.new_only, kept_new[~in_place]))
        self._replace = kept_new[in_place]

    def _in_place(self, kept_old: np.ndarray, kept_new: np.ndarray) -> np.ndarray:
        if not self._locating_columns():
            return np.zeros(len(kept_old), bool)
        stored = {column.name for column in self.table.stored_columns}
        names = set(self.table.primary_key)
        for index in self.table.indexes:
            if (index.unique or index.primary) and index.state == STATE_PUBLIC:
                names.update(name for name, _, _ in index.columns)
        if not names <= stored:  # a unique index on an expression: what it holds isn't in the rows
            return np.zeros(len(kept_old), bool)
        keys = sorted(names)
        if self.table.handle_kind != "heap" and keys == sorted(self.table.primary_key):
            return np.ones(len(kept_old), bool)
        return unchanged([self._old[n] for n in keys], [self._new[n] for n in keys], kept_old, kept_new)

    def _locating_columns(self) -> list[Column]:
        """The key by which rows are found downstream: the primary key, else a unique key without NULLs, else nothing."""
        by_name = {column.name: column for column in self.table.stored_columns}
        for key in self.table.unique_keys():
            if key == self.table.primary_key or all(by_name[name].not_null for name in key):
                return [by_name[name] for name in key]
        return []

    def deletes(self) -> Iterator[Step]:
        """Delete steps, to be executed before any load."""
        started = time.perf_counter()
        steps = list(self._delete_steps())
        self._timings.format += time.perf_counter() - started
        yield from steps

    def _delete_steps(self) -> Iterator[Step]:
        if len(self._remove) == 0:
            return
        rows = pa.array(self._remove)
        head = f"DELETE FROM {quote_table(self.table)} WHERE ".encode()
        key = self._locating_columns()
        if not key:
            columns = self.table.stored_columns
            conditions = row_conditions(columns, [self._old[c.name].take(rows) for c in columns]).to_pylist()
            for condition, count in Counter(conditions).items():
                yield self._step("delete", count, head + condition + b" LIMIT %d" % count)
            return
        arrays = [self._old[c.name].take(rows) for c in key]
        if len(key) == 1:
            terms, before, between, after = literal_column(arrays[0], key[0]), quote_name(key[0].name).encode() + b" IN (", b",\n", b")"
        else:
            terms, before, between, after = key_conditions(key, arrays), b"", b"\nOR ", b""
        for group in _groups(terms.to_pylist()):
            yield self._step("delete", len(group), head + before + between.join(group) + after)

    def loads(self) -> Iterator[Step]:
        """Load steps: rows that take a free place first, then those that take the place of their former selves."""
        for rows, replaces in ((self._write, False), (self._replace, True)):
            if len(rows) == 0:
                continue
            started = time.perf_counter()
            index = pa.array(rows)
            columns = {column.name: self._new[column.name].take(index) for column in self.table.writable_columns}
            self._timings.format += time.perf_counter() - started
            chunks = format_load(self.table, columns, len(rows))
            while True:
                started = time.perf_counter()
                chunk = next(chunks, None)
                self._timings.format += time.perf_counter() - started
                if chunk is None:
                    break
                keys = [column.name for column in self._locating_columns()]
                replaced = chunk.rows if replaces else 0
                yield self._step("load", chunk.rows, chunk.payload, statement=chunk.statement, replaces=replaced, keys=keys)

    def _step(self, kind: str, rows: int, payload: object, **detail: object) -> Step:
        detail["first_ts"] = self.first_ts
        return Step(kind, self.last_ts, self.table.schema_name, self.table.name, detail, rows, 0, payload)

    def _key_text(self, kinds: np.ndarray, change: int, identity: Sequence[str]) -> str:
        images, wanted = (self._new, kinds != DELETE) if kinds[change] == INSERT else (self._old, kinds != INSERT)
        at = int(np.count_nonzero(wanted[:change]))
        return ", ".join(f"{name}={images[name][at].as_py()!r}" for name in identity)


def _groups(terms: list[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for term in terms:
        if group and (len(group) == _KEYS_A_STATEMENT or size + len(term) > _STATEMENT_BYTES):
            yield group
            group, size = [], 0
        group.append(term)
        size += len(term) + 4
    if group:
        yield group


def _comparable(array: pa.Array, column: Column | None) -> pa.Array:
    """Key values whose equality is equality of bytes: 1.10 and 1.1 are one DECIMAL."""
    if column is not None and column.kind == "decimal":
        return pc.if_else(pc.match_substring(array, "."), pc.replace_substring_regex(array, r"\.?0*$", ""), array)
    return array


def _decode(table: Table, kinds: np.ndarray, rows: pa.LargeBinaryArray) -> tuple[Images, Images]:
    """(old images, new images) by column name, each in the order of the changes that have one."""
    inserts, updates, deletes = (np.flatnonzero(kinds == kind) for kind in (INSERT, UPDATE, DELETE))
    inserted = _columns(decode_inserts(table, rows.take(pa.array(inserts)))) if len(inserts) else None
    deleted = _columns(decode_deletes(table, rows.take(pa.array(deletes)))) if len(deletes) else None
    before = after = None
    if len(updates):
        old, new = decode_updates(table, rows.take(pa.array(updates)))
        before, after = _columns(old), _columns(new)
    return _merged((before, updates), (deleted, deletes), table), _merged((inserted, inserts), (after, updates), table)


def _columns(batch: pa.RecordBatch) -> Images:
    return {name: batch.column(i) for i, name in enumerate(batch.schema.names)}


def _merged(first: tuple[Images | None, np.ndarray], second: tuple[Images | None, np.ndarray], table: Table) -> Images:
    """Two sets of images, each with the changes they belong to, as one in the order of the changes."""
    (a, a_at), (b, b_at) = first, second
    if a is None or b is None:
        present = a if a is not None else b
        return present if present is not None else _empty(table)
    order = pa.array(np.argsort(np.concatenate((a_at, b_at)), kind="stable"))
    return {name: pa.concat_arrays([a[name], b[name]]).take(order) for name in a if name in b}


def _empty(table: Table) -> Images:
    return _columns(decode_inserts(table, pa.array([], pa.large_binary())))

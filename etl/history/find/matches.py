"""Join the row changes of a window that a search wants, and describe them by transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.history.find.display_value import row_text
from sluice.etl.history.find.results import FoundTransaction, TableRows
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.rows import ROWID_NAME, decode_deletes, decode_inserts, decode_updates
from sluice.tidb.schema import Table

_MAX_KEYS_SHOWN = 3


class MatchingRows:
    """Row changes that fit, with their tables."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self._pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, pa.Array]] = []

    def add(self, table: Table, changes: pa.Table) -> None:
        numbers = np.full(changes.num_rows, len(self.tables))
        self.tables.append(table)
        columns = (changes[name].to_numpy() for name in ("commit_ts", "start_ts", "kind"))
        self._pieces.append((*columns, numbers, changes["row"].combine_chunks()))

    def is_empty(self) -> bool:
        return not self._pieces

    def joined(self) -> JoinedMatches:
        columns = [
            np.concatenate(column)
            for column in zip(*(piece[:4] for piece in self._pieces), strict=True)
        ]
        rows = pa.concat_arrays([whole_rows(piece[4]) for piece in self._pieces])
        order = np.lexsort((np.arange(len(columns[0])), columns[1], columns[0]))
        commit_ts, start_ts, kinds, numbers = (column[order] for column in columns)
        return JoinedMatches(self.tables, commit_ts, start_ts, kinds, numbers, order, rows)


def large_transactions(
    pieces: Sequence[tuple[Table, pa.Table]], min_rows: int
) -> Iterator[tuple[Table, pa.Table]]:
    """Yield of a window's changes those of transactions that have at least `min_rows` of them."""
    if not pieces:
        return
    commits = [
        np.stack([changes[name].to_numpy() for name in ("commit_ts", "start_ts")])
        for _, changes in pieces
    ]
    _, places, sizes = np.unique(
        np.concatenate(commits, axis=1), axis=1, return_inverse=True, return_counts=True
    )
    large = (sizes >= min_rows)[places.reshape(-1)]
    begin = 0
    for table, changes in pieces:
        kept = changes.filter(pa.array(large[begin : begin + changes.num_rows]))
        begin += changes.num_rows
        if kept.num_rows:
            yield table, kept


def whole_rows(rows: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return rows as one array."""
    return pa.concat_arrays(rows.chunks) if isinstance(rows, pa.ChunkedArray) else rows


@dataclass(frozen=True, slots=True)
class JoinedMatches:
    """All that fits in a window, ascending by commit timestamp.

    `at`: where each one's row is in `rows`.
    """

    tables: Sequence[Table]
    commit_ts: np.ndarray
    start_ts: np.ndarray
    kinds: np.ndarray
    numbers: np.ndarray
    at: np.ndarray
    rows: pa.Array

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return where each transaction begins, and how many changes it has."""
        same = (self.commit_ts[1:] == self.commit_ts[:-1]) & (
            self.start_ts[1:] == self.start_ts[:-1]
        )
        begins = np.flatnonzero(np.append(True, ~same))
        return begins, np.diff(np.append(begins, len(self.commit_ts)))

    def transaction(self, begin: int, end: int) -> FoundTransaction:
        """Return the transaction whose changes are in this range."""
        places = np.arange(begin, end)
        names = np.array(
            [self.tables[number].full_name for number in self.numbers[begin:end].tolist()], object
        )
        tables = tuple(
            self._table(str(name), places[names == name]) for name in dict.fromkeys(names.tolist())
        )
        return FoundTransaction(
            int(self.commit_ts[begin]), int(self.start_ts[begin]), end - begin, tables
        )

    def _table(self, name: str, places: np.ndarray) -> TableRows:
        inserts, updates, deletes = (
            int(np.count_nonzero(self.kinds[places] == kind)) for kind in (INSERT, UPDATE, DELETE)
        )
        keys = tuple(self._key(int(place)) for place in places[:_MAX_KEYS_SHOWN])
        return TableRows(name, inserts, updates, deletes, keys)

    def _key(self, place: int) -> str:
        table, kind = self.tables[self.numbers[place]], int(self.kinds[place])
        old, new = images_of_change(table, kind, self.rows.slice(int(self.at[place]), 1))
        image = by_name(new if new is not None else old) or {}
        names = [column.name for column in lookup_key_columns(table)] or [
            name for name in image if name != ROWID_NAME
        ]
        return row_text(image, names, 0)


def images_of_change(
    table: Table, kind: int, rows: pa.Array
) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None]:
    """Return the old and the new images of changes of one kind, None where it has none."""
    if kind == INSERT:
        return None, decode_inserts(table, rows)
    if kind == DELETE:
        return decode_deletes(table, rows), None
    return decode_updates(table, rows)


def by_name(images: pa.RecordBatch | None) -> dict[str, pa.Array] | None:
    """Return images as columns by name."""
    return None if images is None else dict(zip(images.schema.names, images.columns, strict=True))

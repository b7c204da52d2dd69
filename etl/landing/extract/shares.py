"""Join what a transaction changed in several shares of the tables.

Each pump of a share has the rows of its own tables, under the transaction's two timestamps. A row
that moved from one partition to another is a delete in one share and an insert in another one. So
all deletes of a transaction come first, then its updates, then its inserts, as in each share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.relay import DELETE, PART_SCHEMA

_BATCH_BYTES = 8 * 2**20
"""Size of the batches of a part, which readers have in memory."""
_Keys = npt.NDArray[np.int64]
"""Three columns: commit_ts, start_ts, and the rank of the kind."""
_Key = tuple[int, int, int]


def in_order(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the row changes of whole payloads with each transaction's kinds in order."""
    table = pa.Table.from_batches(batches, PART_SCHEMA).combine_chunks()
    order = _order(_keys(table))
    return table if (order[1:] > order[:-1]).all() else table.take(pa.array(order))


def join_shares(shares: Sequence[Iterator[pa.Table]]) -> Iterator[pa.RecordBatch]:
    """Yield the row changes of all shares in commit order, with positions that count from 0 again.

    Each share's tables come from `in_order`, ascending. One of each is in memory at a time.
    """
    heads = [_Head(tables) for tables in shares]
    last, count = (-1, -1), 0
    while heads := [head for head in heads if head.load()]:
        # What comes later of any share has at least the key with which its table ends.
        through = min(head.last for head in heads)
        taken = [head.take(through) for head in heads]
        table = pa.concat_tables(taken).combine_chunks()
        keys = _keys(table)
        order = _order(keys)
        keys = keys[order, :2]
        begins = np.append(True, (keys[1:] != keys[:-1]).any(axis=1))
        firsts = np.flatnonzero(begins)
        positions = np.arange(len(keys)) - firsts[np.cumsum(begins) - 1]
        if (int(keys[0, 0]), int(keys[0, 1])) == last:
            positions[: firsts[1] if len(firsts) > 1 else len(keys)] += count
        last, count = (int(keys[-1, 0]), int(keys[-1, 1])), int(positions[-1]) + 1
        columns = table.take(pa.array(order)).combine_chunks().columns
        columns[2] = pa.chunked_array([positions.astype(np.int32)])
        joined = pa.Table.from_arrays(columns, schema=PART_SCHEMA)
        rows = max(1, joined.num_rows * _BATCH_BYTES // max(joined.nbytes, 1))
        yield from joined.to_batches(max_chunksize=rows)


class _Head:
    """The rows of one share that were read and not taken yet."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._table = PART_SCHEMA.empty_table()
        self._keys = _keys(self._table)
        self.last: _Key = (0, 0, 0)

    def load(self) -> bool:
        """Read on if all is taken. Return whether there are rows."""
        while not self._table.num_rows:
            table = next(self._tables, None)
            if table is None:
                return False
            self._table, self._keys = table, _keys(table)
            if table.num_rows:
                commit, start, rank = self._keys[-1].tolist()
                self.last = commit, start, rank
        return True

    def take(self, through: _Key) -> pa.Table:
        """Take the rows up to a key."""
        commit, start, rank = self._keys.T
        is_within = (commit < through[0]) | (
            (commit == through[0])
            & ((start < through[1]) | ((start == through[1]) & (rank <= through[2])))
        )
        count = int(np.count_nonzero(is_within))
        taken = self._table.slice(0, count)
        self._table, self._keys = self._table.slice(count), self._keys[count:]
        return taken


def _keys(table: pa.Table) -> _Keys:
    commit, start, kind = (table[name].to_numpy() for name in ("commit_ts", "start_ts", "kind"))
    return np.column_stack((commit, start, DELETE - kind)).astype(np.int64, copy=False)


def _order(keys: _Keys) -> npt.NDArray[np.int64]:
    """Return the places of rows by ascending key; those of one key stay as they were."""
    return np.lexsort((keys[:, 2], keys[:, 1], keys[:, 0]))

"""Recognise captured transactions, and make one of the parts in which a pump stores a large one.

A pump stores a captured transaction above 32 MiB as several Prewrites of one commit_ts. Each has a
start_ts below the transaction's own, so that the store's order is theirs, and names the own one in
the field `part_of_start_ts`. From landing on there is one transaction.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pyarrow as pa

from sluice.relay import PART_SCHEMA
from sluice.tidb.codec.varint import decode_uvarint

# tp 0, a start_ts of nine bytes, and a commit_ts that isn't 0
_CAPTURED = re.compile(rb"\x08\x00\x10[\x80-\xff]{8}[\x00-\x7f]\x18[\x01-\xff]")
_PART_OF = 0x48
"""Tag of part_of_start_ts, behind two timestamps of nine bytes."""
_HEAD_BYTES = 22


def is_captured(batch: pa.RecordBatch) -> bool:
    """Return whether a capture wrote a pump's transactions: their Prewrites have a commit_ts."""
    return batch.num_rows > 0 and _CAPTURED.match(batch["payload"][0].as_buffer()) is not None


class PartJoiner:
    """Give the row changes of parts the start_ts of the transaction, and positions that count on.

    One range's batches go through it in their order.
    """

    def __init__(self) -> None:
        self.owners: dict[tuple[int, int], int] = {}
        """The transaction's start_ts by commit_ts and start_ts of each part."""
        self._offsets: dict[tuple[int, int], int] = {}
        """Position of each part's first change."""
        self._changes: dict[tuple[int, int], int] = {}
        """Changes so far by commit_ts and start_ts of the transaction."""

    @property
    def surplus(self) -> int:
        """Return by how many the parts outnumber their transactions."""
        return len(self.owners) - len({(ts, own) for (ts, _), own in self.owners.items()})

    def find(self, batch: pa.RecordBatch) -> None:
        """Note the parts among transactions in WINDOW_SCHEMA."""
        if not is_captured(batch):
            return
        column = batch["payload"]
        _, offsets, payloads = column.buffers()
        edges = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        data = np.frombuffer(payloads, np.uint8)
        places = np.flatnonzero(np.diff(edges) > _HEAD_BYTES)
        places = places[data[edges[places] + _HEAD_BYTES] == _PART_OF]
        for i in places.tolist():
            begin = int(edges[i]) + _HEAD_BYTES + 1
            own, _ = decode_uvarint(data[begin : begin + 10].tobytes())
            self.owners[batch["commit_ts"][i].as_py(), batch["start_ts"][i].as_py()] = own

    def join(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return row changes in PART_SCHEMA with those of parts as their transaction's."""
        if not self.owners:
            return changes
        commits, starts, positions = (changes[name].to_numpy() for name in PART_SCHEMA.names[:3])
        same = (commits[1:] == commits[:-1]) & (starts[1:] == starts[:-1])
        edges = np.concatenate(([0], np.flatnonzero(~same) + 1, [len(starts)])).tolist()
        starts, positions = starts.copy(), positions.copy()
        for begin, end in itertools.pairwise(edges):
            part = int(commits[begin]), int(starts[begin])
            if (own := self.owners.get(part)) is None:
                continue
            whole = part[0], own
            positions[begin:end] += self._offsets.setdefault(part, self._changes.get(whole, 0))
            starts[begin:end] = own
            self._changes[whole] = int(positions[end - 1]) + 1
        joined = pa.array(starts), pa.array(positions)
        columns = [changes["commit_ts"], *joined, *changes.columns[3:]]
        return pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA)

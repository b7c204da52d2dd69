"""Define the schema of the windows that pumps hand out, and a digest of their contents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

WINDOW_SCHEMA = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
    ]
)
"""One row a committed transaction; the timestamps are TSO, `payload` is its Prewrite binlog as TiDB
sent it.
"""


def digest_of(batches: Iterable[pa.RecordBatch]) -> tuple[int, bytes]:
    """Return the number of transactions in WINDOW_SCHEMA, and a digest of their contents.

    The digest doesn't depend on where batches end.
    """
    parts = [hashlib.blake2b(digest_size=16) for _ in range(4)]
    count = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        payloads = batch.column(2)
        _, offsets, data = payloads.buffers()
        edges = np.frombuffer(offsets, np.int64)[payloads.offset :][: batch.num_rows + 1]
        count += batch.num_rows
        columns = batch.column(0).to_numpy(), batch.column(1).to_numpy(), np.diff(edges)
        for part, column in zip(parts, columns):
            part.update(column.tobytes())
        parts[3].update(memoryview(data)[edges[0] : edges[-1]])
    return count, hashlib.blake2b(
        b"".join(part.digest() for part in parts), digest_size=16
    ).digest()

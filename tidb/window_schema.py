"""The schema of the windows that pumps hand out."""

from __future__ import annotations

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

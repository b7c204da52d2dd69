"""The columns of row changes, in parts of the relay log and in the archive's log files alike."""

from __future__ import annotations

import pyarrow as pa

PART_SCHEMA = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("table_id", pa.int64(), nullable=False),
        pa.field("schema_version", pa.int64(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("row", pa.large_binary(), nullable=False),
    ]
)
"""One row a row change; `kind` is 0 insert, 1 update, 2 delete; `row` is TiDB's old row format, as
in the binlog.
"""

INSERT, UPDATE, DELETE = 0, 1, 2

"""Keep changes that the lake has no columns for, with the reason.

They are rows that their table's definition doesn't explain, and tables that no window record
describes. They are in the log as they came; here they can be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from sluice.etl.history.lake._names import COMMIT_TIME, COMMIT_TS, POS, START_TS
from sluice.tidb import tso
from sluice.tidb.rows import RowDecodeError

__all__ = ["FOLDER", "SCHEMA", "readable", "unreadable"]

FOLDER = "_unreadable"
"""The folder in place of a table's."""
SCHEMA = pa.schema(
    [
        pa.field("table_id", pa.int64()),
        pa.field("row_schema_version", pa.int64()),
        pa.field("kind", pa.int32()),
        pa.field("row", pa.binary()),
        pa.field("reason", pa.string()),
        pa.field(COMMIT_TS, pa.int64(), nullable=False),
        pa.field(COMMIT_TIME, pa.timestamp("us", "UTC"), nullable=False),
        pa.field(START_TS, pa.int64(), nullable=False),
        pa.field(POS, pa.int32(), nullable=False),
    ]
)

Read = Callable[[pa.Table], pa.Table]


def readable(changes: pa.Table, read: Read) -> Iterator[tuple[pa.Table | None, pa.Table | None]]:
    """Yield `changes` as `read` returns them, or as `unreadable` does where it raises.

    In order. Caught is RowDecodeError.
    """
    try:
        yield read(changes), None
    except RowDecodeError as error:
        if changes.num_rows == 1:
            yield None, unreadable(changes, str(error.found))
            return
        half = changes.num_rows // 2
        yield from readable(changes.slice(0, half), read)
        yield from readable(changes.slice(half), read)


def unreadable(changes: pa.Table, reason: str) -> pa.Table:
    """Convert changes in PART_SCHEMA into rows in SCHEMA."""
    milliseconds = changes["commit_ts"].to_numpy() >> tso.LOGICAL_BITS
    columns = [
        changes["table_id"],
        changes["schema_version"],
        changes["kind"],
        changes["row"],
        pa.array([reason] * changes.num_rows),
        changes["commit_ts"],
        pa.array(milliseconds * 1000),
        changes["start_ts"],
        changes["position"],
    ]
    return pa.Table.from_arrays(
        [column.cast(kind) for column, kind in zip(columns, SCHEMA.types, strict=True)],
        schema=SCHEMA,
    )

"""The table, the row and the timestamps of the protocols' examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sluice.etl.changes.messages import RowBatch
from sluice.tidb import column_types as types
from sluice.tidb.codec.columnar import arrow_type, from_values
from sluice.tidb.schema import Column, Table
from tests.etl.changes.messages.recorded_messages import BUILT_MS

COMMIT_TS = 450000000000000000
START_TS = COMMIT_TS - 5
PHYSICAL_MS = 1716613769531
_NOT_NULL = types.FLAG_NOT_NULL
ORDERS = Table(
    112,
    1,
    "shop",
    "orders",
    (
        Column(
            1, "id", 0, types.BIGINT, flen=20,
            flag=types.FLAG_UNSIGNED | types.FLAG_PRIMARY_KEY | _NOT_NULL,
        ),
        Column(2, "note", 1, types.VARCHAR, flen=20, charset="utf8mb4"),
        Column(3, "price", 2, types.DECIMAL, flag=_NOT_NULL, flen=10, decimal=2),
        Column(4, "st", 3, types.ENUM, elems=("new", "paid", "sent")),
        Column(5, "raw", 4, types.VARCHAR, flen=8, charset="binary"),
        Column(6, "at", 5, types.TIMESTAMP, decimal=3),
    ),
    pk_is_handle=True,
)  # fmt: skip
ROW = {
    "id": 7,
    "note": "café",
    "price": "12.50",
    "st": 2,
    "raw": b"\x89P\xff",
    "at": "2024-05-25 05:09:29.500",
}

DEBEZIUM_SOURCE = {
    "version": "1",
    "connector": "sluice",
    "name": "default",
    "ts_ms": PHYSICAL_MS,
    "snapshot": "false",
    "db": "shop",
    "table": "orders",
    "server_id": 0,
    "gtid": None,
    "file": "",
    "pos": 0,
    "row": 0,
    "thread": 0,
    "query": None,
    "commit_ts": COMMIT_TS,
    "start_ts": START_TS,
    "cluster_id": "default",
}
"""Where Debezium's envelope says a change of the examples comes from."""


def batch_of(
    kind: int,
    *,
    old: dict[str, Any] | None = None,
    new: dict[str, Any] | None = None,
    table: Table = ORDERS,
) -> RowBatch:
    """Return one change at the examples' timestamp."""
    return RowBatch(
        table,
        kind,
        images(table, [old] if old else []),
        images(table, [new] if new else []),
        np.array([COMMIT_TS]),
        np.array([START_TS]),
        BUILT_MS,
    )


def images(table: Table, rows: list[dict[str, Any]]) -> dict[str, pa.Array]:
    """Return rows in columns, as encoders take them: ENUM and SET are numbers."""
    if not rows:
        return {}
    return {
        column.name: from_values(
            [row[column.name] for row in rows],
            pa.uint64() if column.kind in ("enum", "set") else arrow_type(column),
        )
        for column in table.columns
    }

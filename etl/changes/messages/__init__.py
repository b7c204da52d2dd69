"""Encode changes as messages of the formats that readers of topics know; nothing of Kafka is here.

A format is one module with an Encoder: row changes in columns, DDL, watermarks. Encoders load on
first use: settings describe a format, and need no Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.changes.messages.message_format import (
    AS_TICDC,
    BINLOG,
    FIDELITIES,
    FORMATS,
    LOSSLESS,
    MessageFormat,
)
from sluice.etl.changes.messages.routing import (
    BY_COMMIT_TS,
    BY_TABLE,
    PARTITION_0,
    Dispatch,
    Routing,
    check_expression,
    is_of_one_table,
)
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.changes.messages.avro import head_with_id, resolved
    from sluice.etl.changes.messages.encoders import encoder_for
    from sluice.etl.changes.messages.message import (
        Encoder,
        Message,
        RowBatch,
        TransactionPlace,
        shown_columns,
        split_changes,
        split_frames,
        with_hashes,
    )
    from sluice.etl.changes.messages.partition_hash import row_hashes, table_hash
    from sluice.etl.changes.messages.simple import Bootstraps

__all__ = [
    "AS_TICDC",
    "BINLOG",
    "BY_COMMIT_TS",
    "BY_TABLE",
    "FIDELITIES",
    "FORMATS",
    "LOSSLESS",
    "PARTITION_0",
    "Bootstraps",
    "Dispatch",
    "Encoder",
    "Message",
    "MessageFormat",
    "Routing",
    "RowBatch",
    "TransactionPlace",
    "check_expression",
    "encoder_for",
    "head_with_id",
    "is_of_one_table",
    "resolved",
    "row_hashes",
    "shown_columns",
    "split_changes",
    "split_frames",
    "table_hash",
    "with_hashes",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "head_with_id": "sluice.etl.changes.messages.avro",
        "resolved": "sluice.etl.changes.messages.avro",
        "encoder_for": "sluice.etl.changes.messages.encoders",
        "Encoder": "sluice.etl.changes.messages.message",
        "Message": "sluice.etl.changes.messages.message",
        "RowBatch": "sluice.etl.changes.messages.message",
        "TransactionPlace": "sluice.etl.changes.messages.message",
        "shown_columns": "sluice.etl.changes.messages.message",
        "split_changes": "sluice.etl.changes.messages.message",
        "split_frames": "sluice.etl.changes.messages.message",
        "with_hashes": "sluice.etl.changes.messages.message",
        "row_hashes": "sluice.etl.changes.messages.partition_hash",
        "table_hash": "sluice.etl.changes.messages.partition_hash",
        "Bootstraps": "sluice.etl.changes.messages.simple",
    },
)

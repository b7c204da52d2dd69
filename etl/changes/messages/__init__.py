"""Encode changes as messages of the formats that readers of topics know; nothing of Kafka is here.

A format is one module with an Encoder: row changes in columns, DDL, watermarks.
"""

from collections.abc import Callable

from sluice.etl.changes.messages.avro import Avro, head_with_id, resolved
from sluice.etl.changes.messages.canal_json import CanalJson
from sluice.etl.changes.messages.debezium_avro import DebeziumAvro
from sluice.etl.changes.messages.debezium_json import DebeziumJson
from sluice.etl.changes.messages.message import (
    AS_TICDC,
    FIDELITIES,
    LOSSLESS,
    Encoder,
    Message,
    MessageFormat,
    RowBatch,
    TransactionPlace,
    shown_columns,
    split_changes,
    split_frames,
    with_hashes,
)
from sluice.etl.changes.messages.open_protocol import OpenProtocol
from sluice.etl.changes.messages.partition_hash import row_hashes, table_hash
from sluice.etl.changes.messages.routing import (
    BY_COMMIT_TS,
    BY_TABLE,
    PARTITION_0,
    Dispatch,
    Routing,
    check_expression,
    is_of_one_table,
)
from sluice.etl.changes.messages.simple import Bootstraps, Simple

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

BINLOG = "binlog"
"""TiDB Binlog's protobuf, a message a transaction: `sluice.etl.changes.write_plans.kafka_binlog`"""
_ENCODERS: dict[str, Callable[[MessageFormat], Encoder]] = {
    "avro": Avro,
    "canal-json": CanalJson,
    "debezium-avro": DebeziumAvro,
    "debezium-json": DebeziumJson,
    "open-protocol": OpenProtocol,
    "simple": Simple,
}
FORMATS = (BINLOG, *_ENCODERS)


def encoder_for(options: MessageFormat) -> Encoder:
    """Return the encoder of a format. Raises ValueError for one that has none."""
    if options.name not in _ENCODERS:
        raise ValueError(f"there is no encoder of {options.name!r}; known are {', '.join(FORMATS)}")
    return _ENCODERS[options.name](options)

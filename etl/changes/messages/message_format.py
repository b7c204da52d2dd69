"""Describe the format of a topic's messages, as settings name it.

Apart from the encoders, which load Arrow: every command reads settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.etl.changes.messages.routing import Routing

LOSSLESS = "lossless"
AS_TICDC = "as-ticdc"
FIDELITIES = (LOSSLESS, AS_TICDC)
BINLOG = "binlog"
"""TiDB Binlog's protobuf, a message a transaction: `sluice.etl.changes.write_plans.kafka_binlog`"""
FORMATS = (
    BINLOG,
    "avro",
    "canal-json",
    "debezium-avro",
    "debezium-json",
    "open-protocol",
    "simple",
)
"""All but the first have an encoder in `sluice.etl.changes.messages.encoders`."""


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """The format of a topic's messages, and what its encoder may choose."""

    name: str = "binlog"
    fidelity: str = LOSSLESS
    """`as-ticdc`: TiCDC's values also where they lose something."""
    time_zone: str = "UTC"
    """Zone of TIMESTAMPs in formats that write them without one."""
    tidb_extension: bool = True
    """Canal-JSON: messages have `_tidb` with the commit ts."""
    content_compatible: bool = False
    """Canal-JSON: `old` has changed columns alone, as in Alibaba's Canal."""
    with_checksum: bool = False
    """Simple protocol: rows have a checksum, for which TIMESTAMPs must be in UTC."""
    with_schema: bool = False
    """Debezium: values and keys carry their schema."""
    routing: Routing = field(default_factory=Routing)
    """Where each table's messages go."""

    @property
    def is_lossless(self) -> bool:
        """Return whether values must be reversible."""
        return self.fidelity == LOSSLESS

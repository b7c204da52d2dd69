"""Choose the encoder of a format."""

from __future__ import annotations

from collections.abc import Callable

from sluice.etl.changes.messages.avro import Avro
from sluice.etl.changes.messages.canal_json import CanalJson
from sluice.etl.changes.messages.debezium_avro import DebeziumAvro
from sluice.etl.changes.messages.debezium_json import DebeziumJson
from sluice.etl.changes.messages.message import Encoder
from sluice.etl.changes.messages.message_format import FORMATS, MessageFormat
from sluice.etl.changes.messages.open_protocol import OpenProtocol
from sluice.etl.changes.messages.simple import Simple

_ENCODERS: dict[str, Callable[[MessageFormat], Encoder]] = {
    "avro": Avro,
    "canal-json": CanalJson,
    "debezium-avro": DebeziumAvro,
    "debezium-json": DebeziumJson,
    "open-protocol": OpenProtocol,
    "simple": Simple,
}


def encoder_for(options: MessageFormat) -> Encoder:
    """Return the encoder of a format. Raises ValueError for one that has none."""
    if options.name not in _ENCODERS:
        raise ValueError(f"there is no encoder of {options.name!r}; known are {', '.join(FORMATS)}")
    return _ENCODERS[options.name](options)

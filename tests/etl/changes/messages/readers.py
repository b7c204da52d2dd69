"""The reader of each format, with the options whose messages it reads without loss."""

from __future__ import annotations

from collections.abc import Callable

from sluice.etl.changes.messages import MessageFormat
from tests.etl.changes.messages.avro_reader import AvroReader
from tests.etl.changes.messages.canal_reader import CanalReader
from tests.etl.changes.messages.debezium_avro_reader import DebeziumAvroReader
from tests.etl.changes.messages.debezium_reader import DebeziumReader
from tests.etl.changes.messages.open_reader import OpenReader
from tests.etl.changes.messages.recorded_messages import Reader
from tests.etl.changes.messages.simple_reader import SimpleReader

READERS: dict[str, tuple[MessageFormat, Callable[[], Reader]]] = {
    "canal-json": (MessageFormat("canal-json"), CanalReader),
    "canal-json, changed columns": (
        MessageFormat("canal-json", content_compatible=True),
        CanalReader,
    ),
    "open-protocol": (MessageFormat("open-protocol"), OpenReader),
    "simple": (MessageFormat("simple", with_checksum=True), SimpleReader),
    "avro": (MessageFormat("avro"), AvroReader),
    "debezium-avro": (MessageFormat("debezium-avro"), DebeziumAvroReader),
    "debezium-json": (MessageFormat("debezium-json", with_schema=True), DebeziumReader),
}

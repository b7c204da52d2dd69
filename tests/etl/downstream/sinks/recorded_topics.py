"""A recording in topics of its tables, for consumers that nobody here wrote, and what is expected.

DDL is in a control topic, as the documentation asks for.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sluice.etl.changes.messages import Message
from sluice.etl.changes.messages.message import shown_columns
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.settings import Kafka
from sluice.relay import RelayLog
from sluice.tidb.schema import Column, Table
from tests.etl.changes.messages.canal_reader import CanalReader
from tests.etl.changes.messages.debezium_reader import DebeziumReader
from tests.etl.changes.messages.recorded_messages import (
    SNAPSHOTS,
    Change,
    snapshot_rows,
    snapshot_ts,
)
from tests.etl.downstream.sinks.kafka_topic import REAL, read_topics
from tests.etl.downstream.sinks.told_topics import apply, settings_to
from tests.etl.relay_from_recording import RECORDINGS, land

REGISTRY = os.environ.get("SLUICE_TEST_REGISTRY", "")
_MOMENTS = ("date", "datetime", "timestamp")


class Recorded(NamedTuple):
    """A recording through the snapshot of `SNAPSHOTS`, in a relay log."""

    name: str
    relay: RelayLog
    tables: Mapping[str, Table]
    """By full name, as the last DDL left them."""


class Sent(NamedTuple):
    """A recording in topics. `topics`: by full name of the table."""

    options: Kafka
    topics: Mapping[str, str]
    ends: Mapping[tuple[str, int], int]
    """The offset behind the last message of each partition that has any."""


class Declared:
    """What a format keeps of values, by the definitions of their columns.

    It takes the place of a format's reader, as `snapshot_rows` needs one.
    """

    def __init__(self, tables: Mapping[str, Table], format_name: str) -> None:
        has_numbers = format_name.startswith("debezium")
        self._dates = DebeziumReader() if has_numbers else CanalReader()
        self.columns: dict[str, str] = {}
        self.kinds = {
            name: {column.name: self._kind(column, format_name) for column in shown_columns(table)}
            for name, table in tables.items()
        }

    def _kind(self, column: Column, format_name: str) -> str:
        has_epoch = format_name == "debezium-json" and column.not_null
        return column.kind + (" not null" if has_epoch and column.kind in _MOMENTS else "")

    def read(self, message: Message) -> Change | None:
        raise NotImplementedError  # consumers read

    def kept(self, value: Any, kind: str) -> Any:
        return self._dates.kept(value, kind)


def landed(name: str, folder: Path) -> Recorded:
    """Land a recording."""
    source = RECORDINGS / name
    relay = land(source, f"file://{folder}", 40, through=snapshot_ts(source, SNAPSHOTS[name]))
    tables = {
        table.full_name: table
        for window in relay.windows(0)
        for ddl in RecordedSchema.from_window(window).ddls
        for table in ddl.effect.tables.values()
        if table is not None
    }
    return Recorded(name, relay, tables)


def new_topics(format_name: str, folder: Path, **more: Any) -> Kafka:
    """Return the settings of topics for a format, with further settings of `[kafka]`."""
    prefix = f"c{secrets.token_hex(4)}"
    options = Kafka(
        brokers=REAL,
        topic=f"{prefix}.{{schema}}.{{table}}",
        savepoint=str(folder / f"savepoint-{prefix}"),
        format=format_name,
        dispatch="key",
        partitions=2,
        topic_config={"max.message.bytes": 20_000_000},
        resume_topic=f"{prefix}-resume",
        control_topic=f"{prefix}-control",
        registry_url=REGISTRY if "avro" in format_name else "",
    )
    return dataclasses.replace(options, **more)


def sent(recorded: Recorded, format_name: str, folder: Path, **more: Any) -> Sent:
    """Send a recording in a format, with further settings of `[kafka]`."""
    options = new_topics(format_name, folder, **more)
    apply(settings_to(recorded.relay.url, options, max_rows=20_000))
    prefix, topics, ends = options.topic.partition(".")[0], {}, {}
    for (topic, partition), messages in read_topics(options.brokers, f"{prefix}.").items():
        if messages:
            headers = dict(messages[0].headers() or ())
            topics[bytes(headers["table"]).decode()] = topic
            ends[topic, partition] = (messages[-1].offset() or 0) + 1
    return Sent(options, topics, ends)


def expected_rows(recorded: Recorded, reader: Declared) -> dict[str, Counter[Any]]:
    """Return the rows that TiDB showed, by the tables' full names, as a format keeps them."""
    source = RECORDINGS / recorded.name
    return snapshot_rows(source, SNAPSHOTS[recorded.name], reader, recorded.relay)

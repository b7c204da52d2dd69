"""A pipeline with a topic for each table, several partitions and markers, and what is in them."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from sluice.etl.apply import run_apply
from sluice.etl.changes.messages import Message
from sluice.etl.settings import Apply, Downstream, Kafka, Relay, Settings, Upstream
from sluice.relay import RelayLog
from tests.etl.changes.messages.recorded_messages import snapshot_ts
from tests.etl.downstream.sinks.kafka_topic import broker, read_topics  # noqa: F401 a fixture
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land

CLUSTER = 7
PARTITIONS = 4


@pytest.fixture(scope="module", name="relays")
def landed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RelayLog]:
    return {
        name: land(
            RECORDINGS / name,
            f"file://{tmp_path_factory.mktemp(name)}",
            windows,
            through=snapshot_ts(RECORDINGS / name, label),
            cluster_id=CLUSTER,
        )
        for name, label, windows in (("shop", "b_mid", 40), ("ddl", "a_two_items", 2))
    }


@pytest.fixture(name="options")
def spread(broker: str, tmp_path: Path) -> Kafka:  # noqa: F811
    prefix = f"t{secrets.token_hex(5)}"
    return Kafka(
        brokers=broker,
        topic=f"{prefix}.{{schema}}.{{table}}",
        savepoint=str(tmp_path / "savepoint"),
        format="canal-json",
        dispatch="key",
        partitions=PARTITIONS,
        resume_topic=f"{prefix}-resume",
        transaction_topic=f"{prefix}-transactions",
    )


def prefix_of(options: Kafka) -> str:
    return options.topic.partition(".")[0]


def row_topics(options: Kafka) -> dict[tuple[str, int], list[Message]]:
    """What a consumer gets from each partition of the tables' topics."""
    found = read_topics(options.brokers, prefix_of(options) + ".")
    return {place: [read(message) for message in messages] for place, messages in found.items()}


def read(message: confluent_kafka.Message) -> Message:
    headers = tuple((name, bytes(value)) for name, value in message.headers() or ())
    return Message(int(dict(headers)["commit_ts"]), message.key(), message.value(), headers)


def markers(options: Kafka) -> list[dict[str, Any]]:
    (found,) = read_topics(options.brokers, options.transaction_topic).values()
    return [json.loads(message.value() or b"") for message in found]


def configured(relay: RelayLog, options: Kafka, max_rows: int = 150) -> Settings:
    return Settings(
        Upstream("unused"),
        Relay(relay.url),
        Downstream(type="kafka"),
        apply=Apply(max_rows=max_rows),
        kafka=options,
    )


def applied(relay: RelayLog, options: Kafka) -> None:
    settings = configured(relay, options)
    last = relay.last()
    assert last is not None
    run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))


def identity(message: Message) -> tuple[Any, ...]:
    """A message without the moment at which it was made."""
    value = message.value
    if value is not None and message.key is None:  # Canal-JSON
        value = json.dumps(json.loads(value) | {"ts": 0}).encode()
    return message.commit_ts, message.key, message.headers, value


def merged(found: dict[tuple[str, int], list[Message]]) -> list[Message]:
    """All partitions in the order of commits, what is in several of them once."""
    every = sorted(
        (message for messages in found.values() for message in messages),
        key=lambda message: message.commit_ts,
    )
    once = {}
    for number, message in enumerate(every):
        is_ddl = b'"isDdl":true' in (message.value or b"") or b'"ddl":' in (message.value or b"")
        once[identity(message) if is_ddl else number] = message
    return list(once.values())

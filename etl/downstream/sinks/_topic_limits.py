"""Ask brokers what a topic takes and how long it keeps it, and measure messages as they do."""

from __future__ import annotations

import time
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from sluice.etl.changes.messages import Message

NEW_TOPIC_TIMEOUT_S = 10
"""How long brokers may take to make a topic that was asked for, and to choose its leader."""
_BATCH_BYTES = 61
"""The head of a batch of one message, in Kafka's message format 2."""
_RECORD_BYTES = 30
"""The numbers of a record at their longest: its size, attributes, offsets and counts."""
_HEADER_BYTES = 10
"""The two sizes of a header at their longest."""


class TopicLimits(NamedTuple):
    """What a topic takes and keeps, as its brokers say."""

    max_message_bytes: int
    """Brokers compare it with a batch as it comes to them, compressed."""
    retention_ms: int | None
    """How long messages are kept; -1: for ever; None: unknown."""


def topic_config(client: AdminClient, topic: str, timeout_s: int) -> dict[str, str]:
    """Return the settings of a topic, which may be new. Raises KafkaException."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    deadline = time.monotonic() + NEW_TOPIC_TIMEOUT_S
    while True:
        try:
            found = client.describe_configs([resource], request_timeout=timeout_s)
            return {name: entry.value for name, entry in found[resource].result().items()}
        except KafkaException as error:
            # Brokers tell each other of a new topic one by one.
            is_new = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            if not is_new or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def ask_limits(client: AdminClient, topic: str, timeout_s: int) -> TopicLimits:
    """Return the limits of a topic that is there. Raises KafkaException."""
    found = topic_config(client, topic, timeout_s)
    kept_ms = int(found["retention.ms"]) if "delete" in found["cleanup.policy"] else -1
    return TopicLimits(int(found["max.message.bytes"]), kept_ms)


def wire_bytes(message: Message) -> int:
    """Return how large a message is at most as a batch of its own, uncompressed."""
    headers = sum(len(name) + len(value) + _HEADER_BYTES for name, value in message.headers)
    return _BATCH_BYTES + _RECORD_BYTES + headers + message.size

"""A Kafka broker, and what a consumer gets from a topic.

The broker is librdkafka's own mock, in the test's process, which speaks the protocol over TCP. It
knows transactions, but doesn't hide those that were given up and shuts nobody out; to see that too,
name a broker in SLUICE_TEST_KAFKA (host:port).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sluice.etl.settings import Kafka

REAL = os.environ.get("SLUICE_TEST_KAFKA", "")


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    if REAL:
        yield REAL
        return
    mock = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (metadata,) = mock.list_topics(timeout=60).brokers.values()
    yield f"{metadata.host}:{metadata.port}"


def read_topic(
    options: Kafka, isolation: str = "read_committed", timeout_s: float = 60.0
) -> list[confluent_kafka.Message]:
    """Return what a consumer gets from the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": options.brokers,
            "group.id": "test",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(options.topic, 0, 0)])
    found = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            break
        found.append(message)
    consumer.close()
    return found

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

from sluice.etl.downstream.sinks import _kafka_client
from sluice.etl.downstream.sinks._topic_limits import TopicLimits
from sluice.etl.settings import Kafka

REAL = os.environ.get("SLUICE_TEST_KAFKA", "")
needs_broker = pytest.mark.skipif(not REAL, reason="make test-kafka has a real broker")
"""The mock makes no topics, hides no aborted messages and fences no producer."""


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    if REAL:
        yield REAL
        return
    mock = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (metadata,) = mock.list_topics(timeout=60).brokers.values()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kafka_client, "ask_limits", _kafka_client.ask_limits)
        ask_no_mock()
        yield f"{metadata.host}:{metadata.port}"


def ask_no_mock() -> None:
    """Give topics no limits in this process if the broker is the mock, which answers no question
    about them.
    """
    if not REAL:
        _kafka_client.ask_limits = lambda *_: TopicLimits(1_000_000_000, None)


def read_topic(
    options: Kafka, isolation: str = "read_committed", timeout_s: float = 60.0
) -> list[confluent_kafka.Message]:
    """Return what a consumer gets from partition 0 of the topic."""
    return _read(options.brokers, [TopicPartition(options.topic, 0, 0)], isolation, timeout_s)


def read_topics(
    brokers: str, *prefixes: str, isolation: str = "read_committed", timeout_s: float = 60.0
) -> dict[tuple[str, int], list[confluent_kafka.Message]]:
    """Return what a consumer gets from each partition of the topics with these prefixes."""
    client = Producer({"bootstrap.servers": brokers})
    there = [
        TopicPartition(name, number, 0)
        for name, topic in client.list_topics(timeout=60).topics.items()
        if name.startswith(prefixes)
        for number in topic.partitions
    ]
    found: dict[tuple[str, int], list[confluent_kafka.Message]] = {
        (each.topic, each.partition): [] for each in there
    }
    for message in _read(brokers, there, isolation, timeout_s):
        found[message.topic() or "", message.partition() or 0].append(message)
    return found


def _read(
    brokers: str, partitions: list[TopicPartition], isolation: str, timeout_s: float
) -> list[confluent_kafka.Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "test",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    made = consumer.list_topics(timeout=60).topics
    partitions = [each for each in partitions if each.topic in made]  # no other one ever ends
    consumer.assign(partitions)
    found, ended = [], 0
    deadline = time.monotonic() + timeout_s
    while ended < len(partitions) and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            ended += 1
        else:
            found.append(message)
    consumer.close()
    return found

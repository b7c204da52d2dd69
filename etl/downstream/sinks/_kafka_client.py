"""Use librdkafka as the Kafka sink needs it: options, topics, and what its errors mean."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from sluice.etl.downstream import CheckpointMovedError
from sluice.etl.downstream.sinks._kafka_errors import (
    FENCED_ERRORS,
    REFUSED_ERRORS,
    TOO_LARGE_ERRORS,
    KafkaUnavailableError,
    code_of,
)
from sluice.etl.downstream.sinks._kafka_rights import (
    TOPIC,
    Right,
    principal_of,
    refused_right,
    topics_without_write,
)
from sluice.etl.downstream.sinks._topic_limits import (
    NEW_TOPIC_TIMEOUT_S,
    TopicLimits,
    ask_limits,
    topic_config,
)
from sluice.etl.downstream.sinks._topic_tail import TopicTail, find_tail
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.etl.settings import Kafka, SettingsError

log = logging.getLogger("sluice.kafka")

_BATCH_BYTES = 1_000_000
"""librdkafka's `batch.size`, which is below the brokers' default limit."""
_LINGER_MS = 100
"""How long a batch waits to be full. Before each commit all are sent at once: it costs no lag."""
_TRANSACTION_TIMEOUT_S = 600  # brokers allow 900 unless set otherwise
_HEADROOM_BYTES = 1 << 20
_MAX_RECEIVE_BYTES = 2**31 - 1


class KafkaClient:
    """Producer and consumer options of one cluster, and the translation of their errors."""

    def __init__(self, options: Kafka, topic: str, transactional_id: str) -> None:
        """Keep the options; nothing is connected yet."""
        self._options = options
        self.topic = topic
        self.transactional_id = transactional_id
        self._last_trouble = ""
        self._limits: dict[str, TopicLimits] = {}

    @property
    def _batch_bytes(self) -> int:
        """Return how large a batch of several messages may be, so that every topic takes it."""
        own = self._options.client.get("batch.size", _BATCH_BYTES)
        made = self._options.topic_config.get("max.message.bytes", own)
        limits = (found.max_message_bytes for found in self._limits.values())
        return min(int(own), int(made), *limits)

    @property
    def address(self) -> str:
        """Return the topic and its brokers, for messages."""
        return f"topic {self.topic} on {self._options.brokers}"

    def producer(self, *, transactional: bool) -> Producer:
        """Return a producer that has fenced every earlier one of the same cluster and topic.

        Their open transactions are settled then. One that isn't transactional fences none. Raises
        what `translated` returns.
        """
        common = {"linger.ms": _LINGER_MS, **self._common()}
        if transactional:
            common |= {
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": _TRANSACTION_TIMEOUT_S * 1000,
            }
        try:
            producer = Producer({
                **common,
                "delivery.timeout.ms": self._options.timeout_s * 2000,
                "message.max.bytes": self._options.max_message_bytes,
                "batch.size": self._batch_bytes,
                "enable.idempotence": True,
                "acks": "all",
            })  # fmt: skip
        except (KafkaException, ValueError) as error:
            raise self.translated(error, "connecting") from error
        if not transactional:
            return producer
        try:
            producer.init_transactions(self._options.timeout_s)
        except KafkaException as error:
            with contextlib.suppress(KafkaException, SystemError):
                producer.poll(0)  # for what the client noted meanwhile
            raise self.translated(error, "connecting") from error
        return producer

    def brokers_id(self) -> str:
        """Return the cluster id that these brokers share. Raises as `translated`."""
        try:
            producer = Producer(self._common())
            return str(producer.list_topics(timeout=self._options.timeout_s).cluster_id)
        except KafkaException as error:
            raise self.translated(error, "asking the brokers for their cluster id") from error

    def partitions_there(self) -> dict[str, int]:
        """Return the number of partitions of every topic. Raises as `translated`."""
        try:
            found = AdminClient(self._common()).list_topics(timeout=self._options.timeout_s).topics
        except KafkaException as error:
            raise self.translated(error, "listing the topics") from error
        return {name: len(topic.partitions) for name, topic in found.items()}

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic, which brokers may make when asked for it.

        Raises ApplyError if it isn't there, and as `translated`.
        """
        deadline = time.monotonic() + NEW_TOPIC_TIMEOUT_S
        client = AdminClient(self._common())
        while True:
            try:
                found = client.list_topics(topic, timeout=self._options.timeout_s).topics[topic]
            except KafkaException as error:
                raise self.translated(error, f"looking at topic {topic!r}") from error
            if found.partitions:
                return len(found.partitions)
            if found.error and found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                wanted = Right("Describe", TOPIC, (topic,))
                refused = KafkaException(found.error)
                raise self.translated(refused, f"looking at topic {topic!r}", wanted)
            if time.monotonic() > deadline:
                raise ApplyError(
                    f"topic {topic!r} is not on {self._options.brokers}: {found.error}",
                    hint="make the topic, or set [kafka] partitions, by which Sluice makes it",
                )
            time.sleep(0.1)

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, Any]) -> None:
        """Make a topic unless it is there. Raises as `translated`."""
        new = NewTopic(
            topic,
            partitions,
            self._options.replication_factor,
            config={key: str(value) for key, value in config.items()},
        )
        try:
            client = AdminClient(self._common())
            client.create_topics([new], operation_timeout=self._options.timeout_s)[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                wanted = Right("Create", TOPIC, (topic,))
                raise self.translated(error, f"making topic {topic!r}", wanted) from error

    def limits_of(self, topic: str) -> TopicLimits:
        """Return what a topic takes; it is asked for once.

        Raises KafkaUnavailableError if the producer's batches are too large for it: the next
        producer makes smaller ones. Raises as `translated`, too.
        """
        found = self._limits.get(topic)
        if found is not None:
            return found
        before = self._batch_bytes
        found = self._limits[topic] = self._ask_limits(topic)
        if found.max_message_bytes < before:
            raise KafkaUnavailableError(
                f"topic {topic!r} on {self._options.brokers} takes {found.max_message_bytes} bytes,"
                f" batches have up to {before}: the next connection makes smaller ones"
            )
        return found

    def _ask_limits(self, topic: str) -> TopicLimits:
        self.partitions_of(topic)  # brokers may make it now
        try:
            return ask_limits(AdminClient(self._common()), topic, self._options.timeout_s)
        except KafkaException as error:
            if error.args[0].code() not in REFUSED_ERRORS:
                raise self.translated(error, f"reading the settings of topic {topic!r}") from error
            log.info("topic's limits unknown, set its right DescribeConfigs topic=%s", topic)
            return TopicLimits(self._options.max_message_bytes, None)

    def make_resume_topic(self, topic: str, config: Mapping[str, str]) -> None:
        """Make the topic of resume records unless it is there.

        Raises ApplyError for one whose records the brokers may remove, and as `translated`.
        """
        self.create_topic(topic, 1, config)
        try:
            found = topic_config(AdminClient(self._common()), topic, self._options.timeout_s)
        except KafkaException as error:
            wanted = Right("DescribeConfigs", TOPIC, (topic,))
            doing = f"reading the settings of topic {topic!r}"
            raise self.translated(error, doing, wanted) from error
        policy = found["cleanup.policy"]
        if policy != "compact":
            raise ApplyError(
                f"topic {topic!r} on {self._options.brokers} has cleanup.policy={policy}: its"
                " resume records would be removed by age",
                hint=(
                    "kafka-configs.sh --alter --entity-type topics --entity-name"
                    f" {topic} --add-config cleanup.policy=compact"
                ),
            )

    def topics_with_messages(self, topics: Sequence[str]) -> list[str]:
        """Return those of the topics that are there and hold messages. Raises as `translated`."""
        there = self.partitions_there()
        places = [TopicPartition(name, n) for name in topics for n in range(there.get(name, 0))]
        if not places:
            return []
        client = AdminClient(self._common())
        edges = []
        try:
            for edge in (OffsetSpec.earliest(), OffsetSpec.latest()):  # type: ignore[no-untyped-call]
                answers = client.list_offsets(dict.fromkeys(places, edge))
                edges.append([answers[place].result().offset for place in places])
        except KafkaException as error:
            raise self.translated(error, "asking for the topics' offsets") from error
        pairs = zip(places, *edges, strict=True)
        return list(dict.fromkeys(place.topic for place, first, end in pairs if first < end))

    def tail(self, topic: str = "", key: bytes | None = None) -> TopicTail:
        """Return where partition 0 of a topic ends, as of its last committed message.

        `topic`: the pipeline's own by default. With a `key` other messages don't count, and a
        tombstone removes those before it. Raises as `translated`.
        """
        topic = topic or self.topic
        consumer = Consumer(
            {
                **self._common(),
                "group.id": self.transactional_id,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "receive.message.max.bytes": min(
                    _MAX_RECEIVE_BYTES,
                    max(100_000_000, self._options.max_message_bytes + _HEADROOM_BYTES),
                ),
            }
        )
        try:
            return find_tail(consumer, topic, key, self._options.timeout_s)
        except (KafkaException, KafkaUnavailableError) as error:
            wanted = Right("Read", TOPIC, (topic,))
            raise self.translated(error, "reading the last message", wanted) from error
        finally:
            consumer.close()

    def refused_topics(self, error: BaseException, topics: Sequence[str]) -> Right | None:
        """Return the right that a refused write lacks; None if the error is about no topic."""
        if code_of(error) != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return None
        client = AdminClient(self._common())
        denied = topics_without_write(client, topics, self._options.timeout_s)
        return Right("Write", TOPIC, tuple(denied or topics))

    def translated(
        self, error: BaseException, doing: str, wanted: Right | None = None
    ) -> Exception:
        """Return the exception to raise for an error of the client.

        `wanted`: the right that is missing if topics are refused. CheckpointMovedError when another
        process has taken over, ApplyError when trying again can't help, KafkaUnavailableError
        otherwise.
        """
        if isinstance(error, KafkaUnavailableError):
            return KafkaUnavailableError(f"{self.address}, {doing}: {error}{self._last_trouble}")
        kafka = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None
        text = f"{self.address}, {doing}: {kafka.str() if kafka else error}"
        if kafka is None:
            return ApplyError(text)
        code = kafka.code()
        if code in FENCED_ERRORS:
            return CheckpointMovedError(
                f"{text}: another process writes to the same topic for this cluster: stop one of"
                " the two"
            )
        if code in TOO_LARGE_ERRORS:
            return ApplyError(
                f"{text}: raise max.message.bytes of the topic (and message.max.bytes of the"
                " brokers), or [kafka] max-message-bytes if it is below"
            )
        right = refused_right(code, self.transactional_id, wanted)
        if right is not None:
            principal = principal_of(self._common())
            return ApplyError(
                f"{text}: {principal} has no right to {right}",
                hint=right.grant(self._options.brokers, principal),
            )
        if code in REFUSED_ERRORS:
            return ApplyError(f"{text}{self._last_trouble}")
        return KafkaUnavailableError(f"{text}{self._last_trouble}")

    def _common(self) -> dict[str, Any]:
        try:
            further = self._options.options()
        except ValueError as error:
            raise SettingsError(str(error)) from None
        return {
            "client.id": self._options.client_id,
            "socket.timeout.ms": self._options.timeout_s * 1000,
            **further,
            "bootstrap.servers": self._options.brokers,
            "error_cb": self._note,
            "logger": log,
        }

    def _note(self, error: KafkaError) -> None:
        self._last_trouble = f" (last trouble: {error.str()})"

    def clear_trouble(self) -> None:
        """Forget the last trouble, as it is over."""
        self._last_trouble = ""

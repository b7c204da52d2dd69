"""Find the last committed message of a topic's partition 0."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sluice.etl.downstream.sinks._kafka_errors import KafkaUnavailableError

PARTITION = 0


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last committed message of a partition."""

    offset: int
    value: bytes
    commit_ts: str | None
    """The text of its header `commit_ts`; None if it has none."""

    @classmethod
    def from_kafka(cls, message: Message) -> LastMessage:
        """Return what counts of a consumer's message."""
        headers = dict(message.headers() or ())
        found = headers.get("commit_ts")
        text = found.decode("ascii", "replace") if isinstance(found, bytes) else found
        return cls(int(message.offset() or 0), message.value() or b"", text)


@dataclass(frozen=True, slots=True)
class TopicTail:
    """A topic tail; `next`: the offset that the next message gets.

    `last`: the last message; None when there is none.
    """

    next: int
    last: LastMessage | None


def find_tail(consumer: Consumer, topic: str, key: bytes | None, timeout_s: int) -> TopicTail:
    """Return where partition 0 of a topic ends.

    With a `key` other messages don't count, and a tombstone removes those before it. Raises
    KafkaUnavailableError, and KafkaException.
    """
    low, high = _bounds(consumer, topic, timeout_s)
    last, behind = None, 1
    # The last offsets may be marks of transactions, or messages of one that was given up.
    while last is None and behind < 8 * (high - low):
        start = TopicPartition(topic, PARTITION, max(low, high - behind))
        last = _last_from(consumer, start, high, key, timeout_s)
        behind *= 8
    return TopicTail(high, last)


def _bounds(consumer: Consumer, topic: str, timeout_s: int) -> tuple[int, int]:
    """Return (first offset there is, offset of the next message).

    (0, 0) when the topic doesn't exist yet.
    """
    try:
        low, high = consumer.get_watermark_offsets(
            TopicPartition(topic, PARTITION), timeout=timeout_s
        )
        return max(0, low), max(0, high)
    except KafkaException as error:
        if error.args[0].code() in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
        ):
            return 0, 0
        raise


def _last_from(
    consumer: Consumer, start: TopicPartition, high: int, key: bytes | None, timeout_s: int
) -> LastMessage | None:
    consumer.assign([start])
    last = None
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is None:
            if key is None or message.key() == key:
                removed = key is not None and message.value() is None
                last = None if removed else LastMessage.from_kafka(message)
            if int(message.offset() or 0) >= high - 1:
                return last
            deadline = time.monotonic() + timeout_s
        elif error.code() == KafkaError._PARTITION_EOF:
            return last
        else:
            raise KafkaException(error)
    raise KafkaUnavailableError(
        f"no answer to a read of topic {start.topic!r} from offset {start.offset} in {timeout_s} s"
    )

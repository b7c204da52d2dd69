"""Send messages by one producer, in Kafka transactions, and count what each topic got."""

from __future__ import annotations

import time

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Producer

from sluice.etl.changes.messages import Message
from sluice.etl.downstream.sinks._kafka_client import KafkaClient
from sluice.etl.downstream.sinks._kafka_errors import (
    KafkaUnavailableError,
    abandon,
    error_reason,
    refusal_in,
)
from sluice.etl.downstream.sinks.sink import ApplyError, TopicCounts
from sluice.etl.settings import Kafka

_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_POLL_EVERY = 1000
"""Messages between two polls for delivery reports: a poll costs nearly as much as a message."""
_REPORT_TIMEOUT_S = 1
"""The client reports a refused message a little after it gives the transaction up."""


class KafkaSender:
    """One producer. Used by one thread."""

    def __init__(self, options: Kafka, client: KafkaClient) -> None:
        """Keep the options; `open` connects."""
        self._options = options
        self._client = client
        self._producer: Producer | None = None
        self.in_transaction = False
        """Whether messages were sent that no commit followed."""
        self.offset = -1
        """The largest offset of the messages that were sent with `is_reported`."""
        self._counts: dict[str, list[int]] = {}  # messages and bytes by topic
        self._sent = 0
        self._rejected: KafkaError | None = None
        self._rejected_at = ""

    @property
    def address(self) -> str:
        return self._client.address

    def open(self) -> None:
        """Connect, and fence every earlier producer. Raises as `KafkaClient.producer`."""
        self.close()
        self.in_transaction, self.offset, self._sent = False, -1, 0
        self._rejected, self._rejected_at, self._counts = None, "", {}
        self._producer = self._client.producer(transactional=self._options.is_transactional)

    def close(self) -> None:
        """Give up what wasn't committed. Never raises."""
        if self._producer is not None:
            abandon(self._producer)
        self._producer = None

    def begin(self) -> bool:
        """Begin a transaction unless one is open, and return whether it was begun."""
        if self.in_transaction:
            return False
        producer = self._connected()
        if self._options.is_transactional:
            try:
                producer.begin_transaction()
            except (KafkaException, SystemError) as error:
                doing = "beginning a transaction"
                raise self._client.translated(error_reason(producer, error), doing) from error
        self.in_transaction = True
        return True

    def send(
        self, message: Message, topic: str, partition: int, *, is_reported: bool = False
    ) -> None:
        """Send a message in the open transaction.

        `is_reported`: its offset is wanted. Raises as `KafkaClient.translated`.
        """
        commit_ts, key, value, headers = message
        size = message.size
        producer = self._connected()
        report = self._delivered if is_reported else self._noted
        try:
            while True:
                try:
                    producer.produce(
                        topic,
                        value,
                        key,
                        partition=partition,
                        headers=list(headers) or None,
                        on_delivery=report,
                    )
                    break
                except BufferError:  # what is on the way must arrive first
                    self._wait_for_room(commit_ts, topic)
            self._sent += 1
            if self._sent % _POLL_EVERY == 0:
                producer.poll(0)
        except (KafkaException, SystemError) as error:
            doing = f"sending commit_ts {commit_ts} ({size} bytes) to {topic}[{partition}]"
            refusal = refusal_in(error)
            try:
                producer.flush(_REPORT_TIMEOUT_S)  # a refused message before it may be the cause
            except (KafkaException, SystemError) as found:
                refusal = refusal or refusal_in(found)  # the client raises what broke it once
            if refusal is None:
                self._check_refused(doing)
            reason = refusal or error_reason(producer, error)
            raise self._about(reason, doing, topic) from error
        if self._rejected is not None:
            self._check_refused(f"sending through commit_ts {commit_ts}")
        counted = self._counts.get(topic)
        if counted is None:
            counted = self._counts[topic] = [0, 0]
        counted[0] += 1
        counted[1] += size

    def _wait_for_room(self, commit_ts: int, topic: str) -> None:
        producer, before = self._connected(), len(self._connected())
        deadline = time.monotonic() + self._options.timeout_s
        while len(producer) >= before:
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(
                    f"{self.address}, sending commit_ts {commit_ts} to {topic}: nothing was"
                    f" taken for {self._options.timeout_s} s"
                )
            producer.poll(0.05)

    def flush(self, doing: str) -> None:
        """Wait until all messages arrived. Raises as `send`."""
        producer = self._connected()
        try:
            left = producer.flush(self._options.timeout_s)
        except (KafkaException, SystemError) as error:
            refusal = refusal_in(error)
            if refusal is None:
                self._check_refused(doing)
            raise self._about(refusal or error_reason(producer, error), doing) from error
        self._check_refused(doing)
        if left:
            raise KafkaUnavailableError(
                f"{self.address}, {doing}: {left} messages were not taken in"
                f" {self._options.timeout_s} s"
            )

    def commit(self, doing: str) -> dict[str, TopicCounts]:
        """Make all durable that was sent, and return its counts by topic. Raises as `send`."""
        self.flush(doing)
        if self._options.is_transactional:
            producer = self._connected()
            try:
                producer.commit_transaction(self._options.timeout_s)
            except (KafkaException, SystemError) as error:
                self._check_refused(doing)
                raise self._about(error_reason(producer, error), doing) from error
        self.in_transaction = False
        counts, self._counts = self._counts, {}
        return {topic: TopicCounts(*counted) for topic, counted in counts.items()}

    def _noted(self, error: KafkaError | None, message: confluent_kafka.Message) -> None:
        # what is thrown away for another message's error doesn't name that
        if error is not None and (self._rejected is None or self._rejected.code() in _PURGED):
            self._rejected = error
            self._rejected_at = f"{message.topic()}[{message.partition()}]"

    def _delivered(self, error: KafkaError | None, message: confluent_kafka.Message) -> None:
        self._noted(error, message)
        if error is None:
            self.offset = max(self.offset, int(message.offset() or 0))

    def _check_refused(self, doing: str) -> None:
        if self._rejected is not None:
            raise self._about(
                error_reason(self._connected(), KafkaException(self._rejected)),
                f"{doing}, of which {self._rejected_at} refused a message",
                self._rejected_at.rpartition("[")[0],
            )

    def _about(self, error: BaseException, doing: str, topic: str = "") -> Exception:
        """Return the exception to raise for an error; `topic`: it may be about that one."""
        sent = [*self._counts, topic] if topic else [*self._counts]
        refused = self._client.refused_topics(error, sent)
        found = self._client.translated(error, doing, refused)
        if isinstance(found, ApplyError | KafkaUnavailableError):
            found.topic = refused.names[0] if refused else topic
        return found

    def _connected(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("recover() comes first")
        return self._producer

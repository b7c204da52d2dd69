"""Send transactions to Kafka: a message each, or in other formats one a row change.

Each is sent exactly once. Messages go out in Kafka transactions, one for what lies between two
commit steps. A new producer fences the process that wrote before and settles what it left open.
After that the last committed message of the topic shows where to go on, or, where there are several
partitions, the resume record, which is in the same Kafka transaction. The savepoint file has what
no message has: how far an upstream without changes was followed, and how far the topic had come.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sluice.etl.changes.formats.binlog_file import FOOTER, HEADER, commit_ts_of, split_records
from sluice.etl.changes.messages import BINLOG, Bootstraps, Message, encoder_for, split_changes
from sluice.etl.changes.steps import MessageSchema, ScopedDdl, Step, TransactionDetail
from sluice.etl.changes.write_plans.kafka_binlog import ddl_message
from sluice.etl.downstream import Checkpoint, Savepoint, SavepointFile
from sluice.etl.downstream.sinks._binlog_sink import BinlogSink
from sluice.etl.downstream.sinks._kafka_client import KafkaClient
from sluice.etl.downstream.sinks._kafka_sender import KafkaSender
from sluice.etl.downstream.sinks._kafka_topics import (
    RESUME_CONFIG,
    CopyPosition,
    Place,
    ResumeRecord,
    Topics,
    TransactionMarkers,
)
from sluice.etl.downstream.sinks._large_messages import LargeMessages
from sluice.etl.downstream.sinks._schema_registry import SchemaRegistry
from sluice.etl.downstream.sinks._topic_tail import PARTITION, LastMessage
from sluice.etl.downstream.sinks.sink import ApplyError, TopicCounts
from sluice.etl.settings import Kafka
from sluice.tidb.table_name import TableName


class KafkaSink(BinlogSink):
    """The topics of one pipeline."""

    def __init__(self, options: Kafka, cluster_id: int, job: str = "") -> None:
        """Create the Kafka sink; `job`: which job writes there, "" for a pipeline."""
        super().__init__(savepoint_file(options, cluster_id, job))
        self.write_plan = write_plan_of_topic(options)
        self._options = options
        self._encoder = None if options.format == BINLOG else encoder_for(options.message_format)
        self._registry = SchemaRegistry(options) if options.registry_url else None
        self._client = client_of(options, cluster_id)
        self._sender = KafkaSender(options, self._client)
        self._topics = Topics(options, self._client)
        self._large = LargeMessages(options, self._client, self._encoder)
        self._markers = TransactionMarkers()
        self._bootstraps = Bootstraps()
        self._job = job
        self._resume_topic = resume_topic(options, cluster_id)
        self._copy: CopyPosition | None = None
        self._pieces: list[bytes] = []  # of a record that has begun and not ended
        self._watermark_due_s = 0.0  # of the monotonic clock

    @property
    def address(self) -> str:
        return self._client.address

    def close(self) -> None:
        self._sender.close()

    def recover(self) -> Checkpoint | None:
        """Fence earlier writers, and find the last transaction that is in the topic."""
        self.close()
        self._pieces = []
        self._watermark_due_s, self._markers = 0.0, TransactionMarkers()
        self._bootstraps = Bootstraps()
        try:
            self._savepoint.path.parent.mkdir(parents=True, exist_ok=True)
            found = self._savepoint.load()
        except (PermissionError, NotADirectoryError, FileExistsError) as error:
            raise ApplyError(
                f"{error}: [kafka] savepoint must be a file that this user can write"
            ) from error
        if self._resume_topic:  # before a copying process is fenced
            self._check_copy(self._record_there())
        self._sender.open()
        checkpoint = found.checkpoint if found else Checkpoint(0)
        if self._resume_topic:
            there = self._resume(found)
        else:
            tail = self._client.tail()
            self._check_place(found, tail.next)
            there = 0
            if tail.last is not None:
                self._sender.offset = tail.last.offset
                there = _commit_ts_of(self._options, tail.last, self.address)
        self._client.clear_trouble()
        checkpoint = checkpoint.at(there) if there > checkpoint.commit_ts else checkpoint
        self._checkpoint = checkpoint if checkpoint.commit_ts else None
        return self._checkpoint

    def _resume(self, found: Savepoint | None) -> int:
        """Return the commit ts of the resume record, 0 if there is none."""
        self._client.make_resume_topic(self._resume_topic, RESUME_CONFIG)
        for topic in (self._options.transaction_topic, self._options.control_topic):
            if topic:
                self._client.create_topic(topic, 1, self._options.topic_config)
        tail = self._client.tail(self._resume_topic, self._client.transactional_id.encode())
        self._check_place(found, tail.next)
        if tail.last is None:
            self._topics.resume_from({})
            # The pipeline may have written to partition 0 alone before, without a record.
            before = self._client.tail().last if self._had_one_partition() else None
            return _commit_ts_of(self._options, before, self.address) if before else 0
        self._sender.offset = tail.last.offset
        record = _record(tail.last, self._resume_topic)
        self._check_copy(record)
        self._copy = record.copy
        if record.job != self._job:
            raise ApplyError(
                f"{self.address} was written by {record.job or 'a pipeline'!r}, and"
                f" {self._job or 'a pipeline'!r} is to write there",
                hint="give each topics, and a [kafka] resume-topic, of its own",
            )
        self._topics.resume_from(record.topics)
        return record.checkpoint.commit_ts

    def _record_there(self) -> ResumeRecord | None:
        """Return the pipeline's resume record; None if there is none."""
        last = self._client.tail(self._resume_topic, self._client.transactional_id.encode()).last
        return _record(last, self._resume_topic) if last else None

    def _check_copy(self, record: ResumeRecord | None) -> None:
        """Refuse to write behind a part of a copy."""
        copied = record.copy if record else None
        if copied is not None and not copied.has_ended:
            raise ApplyError(
                f"{self.address}: the copy {copied.job} has not ended there: {copied.next} chunks"
                " are in the topics",
                hint="`sluice jobs` names the job: `sluice jobs resume`, or `sluice jobs cancel`",
            )

    def _had_one_partition(self) -> bool:
        """Return whether what is in the topic can only be of a time without resume records.

        At least once, rows may be there whose record never came.
        """
        return self._options.is_transactional and "{" not in self._client.topic

    def _write_ddl(self, ddl: ScopedDdl) -> None:
        if self._encoder is None:
            self._send(_binlog(ddl_message(ddl)))
            return
        self._register(ddl)
        self._end_transaction()
        targets = list(self._topics.ddl_targets(ddl))
        built_ms = int(time.time() * 1000)
        for message in self._encoder.ddl(ddl, built_ms):
            self._send_everywhere(message, targets)
        if (truncation := self._encoder.truncation(ddl, built_ms)) is not None:
            self._send_everywhere(truncation, self._topics.truncation_targets(ddl, targets))

    def _send_everywhere(self, message: Message, targets: Iterable[tuple[str, int]]) -> None:
        """Send a message to each (topic, partition), with the registry's ids."""
        schemas = self._encoder.schemas if self._encoder else ()
        for topic, partition in targets:
            self._send(self._identified(message, schemas, topic), topic, partition)

    def _write_records(self, data: memoryview, detail: TransactionDetail) -> None:
        if self._encoder is not None:
            for row_hash, message in split_changes(data):
                self._send_row(row_hash, message, detail.schemas)
        elif detail.more:
            self._pieces.append(bytes(data))
        elif self._pieces:
            record = b"".join([*self._pieces, data])
            self._pieces = []
            self._send(_binlog(record[HEADER.size : -FOOTER.size]))
        else:
            for _, record_message in split_records(data):
                self._send(_binlog(bytes(record_message)))

    def _identified(
        self, message: Message, schemas: Sequence[MessageSchema], topic: str
    ) -> Message:
        """Return a message with the registry's ids of its schemas; most formats have none."""
        if self._registry is None:
            return message
        return self._registry.identified(message, schemas, topic)

    def _register(self, ddl: ScopedDdl) -> None:
        """Have the registry take what rows behind the statement will have, or refuse it now."""
        if self._registry is None or self._encoder is None:
            return
        for table in ddl.effect.tables.values():
            if table is not None and table.is_base_table:
                schemas = self._encoder.table_schemas(table)
                topic = self._topics.topic_of(TableName(table.schema_name, table.name))
                self._registry.register(topic, schemas, ddl)

    def _send_row(self, row_hash: int, message: Message, schemas: Sequence[MessageSchema]) -> None:
        if self._options.transaction_topic:
            for marker in self._markers.before(message, int(time.time() * 1000)):
                self._send(marker, self._options.transaction_topic)
            if self._encoder is not None:
                message = self._encoder.in_transaction(message, self._markers.place_of(message))
        self._send_change(row_hash, message, schemas)

    def _send_change(
        self, row_hash: int, message: Message, schemas: Sequence[MessageSchema]
    ) -> None:
        """Send a row's message to its partition; markers don't count it."""
        place = self._topics.place_of(message)
        self._send_bootstrap(message, schemas, place)
        partition = place.partition(row_hash, message.commit_ts)
        identified = self._identified(message, schemas, place.topic)
        sent = self._large.fitting(identified, schemas, place.topic, partition)
        self._produce(sent, place.topic, partition)

    def _send_bootstrap(
        self, message: Message, schemas: Sequence[MessageSchema], place: Place
    ) -> None:
        """Send the schema of a row's table to all its partitions, if the format wants it now.

        It is no event of the transaction: markers don't count it.
        """
        if self._encoder is None or not self._encoder.describes_tables:
            return
        built_ms = int(time.time() * 1000)
        due = self._bootstraps.before(message, schemas, time.monotonic(), built_ms)
        if due is not None:
            for partition in range(place.partitions):
                self._send(due, place.topic, partition)

    def _end_transaction(self) -> None:
        if self._options.transaction_topic:
            for marker in self._markers.end(int(time.time() * 1000)):
                self._send(marker, self._options.transaction_topic)

    def _send(self, message: Message, topic: str = "", partition: int = PARTITION) -> None:
        """Send a message that has no shorter form; `topic` "" is the pipeline's own."""
        topic = topic or self._client.topic
        self._large.check(message, topic)
        self._produce(message, topic, partition)

    def _produce(self, message: Message, topic: str, partition: int) -> None:
        if self._sender.begin():
            self._mark_growth()
        is_reported = not self._resume_topic or topic == self._resume_topic
        self._sender.send(message, topic, partition, is_reported=is_reported)

    def _make_durable(self, step: Step) -> Mapping[str, TopicCounts]:
        self._end_transaction()
        self._send_watermark(step.commit_ts)
        if not self._sender.in_transaction:
            return {}
        doing = f"committing through {step.commit_ts}"
        return self._commit(self._record_through(step) if self._resume_topic else None, doing)

    def _commit(self, record: ResumeRecord | None, doing: str) -> Mapping[str, TopicCounts]:
        """Make all durable that was sent, with the record that promises it."""
        if not self._options.is_transactional:
            self._sender.flush(doing)  # before the record
        if record is not None:
            key = self._client.transactional_id.encode()
            message = Message(record.checkpoint.commit_ts, key, record.to_bytes())
            self._send(message, self._resume_topic)
        return self._sender.commit(doing)

    def _mark_growth(self) -> None:
        """Promise in the partitions that a topic had before that all until now is there.

        A reader that waits for all of these watermarks meets no key out of order.
        """
        grown, self._topics.grown = self._topics.grown, {}
        if self._encoder is None or not self._options.watermark_interval_s:
            return
        through = self._checkpoint.commit_ts if self._checkpoint else 0
        for message in self._encoder.watermark(through, int(time.time() * 1000)):
            for topic, before in grown.items():
                for partition in range(before):
                    self._send(message, topic, partition)

    def _record_through(self, step: Step) -> ResumeRecord:
        version = getattr(step.detail, "schema_version", None)
        checkpoint = (self._checkpoint or Checkpoint(0)).at(step.commit_ts, version)
        return ResumeRecord(checkpoint, self._topics.known, self._job, self._copy)

    def _send_watermark(self, commit_ts: int) -> None:
        """Promise that all through `commit_ts` is in the topic, in the transaction that does it."""
        interval_s = self._options.watermark_interval_s
        if self._encoder is None or not interval_s or time.monotonic() < self._watermark_due_s:
            return
        targets = list(self._topics.all_partitions())
        for message in self._encoder.watermark(commit_ts, int(time.time() * 1000)):
            for topic, partition in targets:
                self._send(message, topic, partition)
        self._watermark_due_s = time.monotonic() + interval_s

    def _save(self, checkpoint: Checkpoint) -> None:
        place = self._resume_topic or self._client.topic
        offset = self._sender.offset
        self._savepoint.save(checkpoint, place if offset >= 0 else None, max(0, offset))

    def _check_place(self, found: Savepoint | None, next_offset: int) -> None:
        place = self._resume_topic or self._client.topic
        if found is None or found.place != place:
            return
        # Kept messages may have been removed by age; their offsets are never used again.
        if next_offset <= found.offset:
            raise ApplyError(
                f"topic {place} on {self._options.brokers} ends before offset {found.offset},"
                f" which was delivered by commitTS {found.checkpoint.commit_ts}: it was recreated,"
                " or lost messages. To go on at that commitTS all the same, remove the [sluice]"
                f" part from the savepoint file {self._savepoint.path}; to send the topic's content"
                " again, set an earlier"
                " commitTS there too"
            )


def write_plan_of_topic(options: Kafka) -> str:
    """Return the name of the write planner that a topic's format takes."""
    return "kafka_binlog" if options.format == BINLOG else "kafka_messages"


def _binlog(message: bytes) -> Message:
    return Message(commit_ts_of(message), None, message)


def _commit_ts_of(options: Kafka, last: LastMessage, address: str) -> int:
    """Return the commit ts of a topic's last message. Raises ApplyError for one of another kind."""
    if options.format != BINLOG:
        if last.commit_ts is not None and last.commit_ts.isdecimal():
            return int(last.commit_ts)
        raise ApplyError(
            f"{address}: the message at offset {last.offset} has no header commit_ts, which every"
            f" message of [kafka] format = {options.format!r} has: another format or program"
            " writes to the topic",
            hint="name a topic of its own in [kafka] topic",
        )
    try:
        return commit_ts_of(last.value)
    except ValueError as error:
        raise ApplyError(
            f"{address}: the message at offset {last.offset} is {error}: another program writes"
            " to this topic; give Sluice one of its own"
        ) from error


def savepoint_file(options: Kafka, cluster_id: int, job: str = "") -> SavepointFile:
    """Return the file that keeps the checkpoint of a topic."""
    return SavepointFile(Path(options.savepoint).absolute(), cluster_id, job)


def resume_topic(options: Kafka, cluster_id: int) -> str:
    """Return the topic with the resume record, "" where the topic's last message shows it."""
    if not options.has_resume_record:
        return ""
    return options.resume_topic or f"{cluster_id}_sluice_resume"


def _record(last: LastMessage, topic: str) -> ResumeRecord:
    return ResumeRecord.parse(last.value, f"topic {topic}, offset {last.offset},")


def client_of(options: Kafka, cluster_id: int) -> KafkaClient:
    """Return the client of a pipeline's topics; nothing is connected yet."""
    topic = options.topic or f"{cluster_id}_obinlog"
    return KafkaClient(options, topic, f"sluice-{cluster_id}-{topic}")


def sent_through(options: Kafka, cluster_id: int) -> int:
    """Return the commit timestamp of the topic's last message, 0 if there is none.

    Raises as `is_unused`.
    """
    last = _last_message(options, cluster_id)
    if last is None:
        return 0
    if topic := resume_topic(options, cluster_id):
        return _record(last, topic).checkpoint.commit_ts
    return _commit_ts_of(options, last, client_of(options, cluster_id).address)


def is_unused(options: Kafka, cluster_id: int) -> bool:
    """Return whether no message is in the topic; fences no writer.

    Raises KafkaUnavailableError, ApplyError.
    """
    return _last_message(options, cluster_id) is None


def _last_message(options: Kafka, cluster_id: int) -> LastMessage | None:
    client = client_of(options, cluster_id)
    topic = resume_topic(options, cluster_id)
    return client.tail(topic, client.transactional_id.encode() if topic else None).last


def is_same_topic(one: Kafka, other: Kafka, cluster_id: int) -> bool:
    """Return whether two sections mean one topic, whatever names the brokers have.

    Raises as `is_unused`.
    """
    a, b = client_of(one, cluster_id), client_of(other, cluster_id)
    return a.topic == b.topic and (one.brokers == other.brokers or a.brokers_id() == b.brokers_id())

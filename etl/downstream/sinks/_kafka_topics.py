"""Know the topics that a pipeline writes to, and remember them in its resume record.

The resume record is the last committed message with the pipeline's transactional id as its key, in
a compacted topic. It is in the Kafka transaction of the rows that it closes. It has the checkpoint,
and the number of partitions of each topic: a key stays in its partition as long as that number
does, so another number is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sluice.etl.changes.messages import (
    BY_COMMIT_TS,
    PARTITION_0,
    Dispatch,
    Message,
    TransactionPlace,
    is_of_one_table,
    table_hash,
)
from sluice.etl.changes.steps import ScopedDdl
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.checkpoint import refuse_newer
from sluice.etl.downstream.sinks._kafka_client import KafkaClient
from sluice.etl.downstream.sinks._topic_tail import PARTITION
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.etl.settings import Kafka
from sluice.etl.settings.sinks import WITH_DDL, WITH_ROWS
from sluice.tidb.table_name import TableName

log = logging.getLogger("sluice")

RESUME_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}
"""One record counts: small segments let the broker remove those before it early."""


class TopicState(NamedTuple):
    """The state of a topic. `table`: the table that it belongs to alone, else ""."""

    partitions: int
    table: str = ""


class CopyPosition(NamedTuple):
    """How far a job has copied the rows that were there at a moment.

    `job`: the job's name and token; `next`: the number of the first chunk that isn't in the topics;
    `rows`: how many rows of each planned table are there.
    """

    job: str
    next: int = 0
    rows: tuple[int, ...] = ()
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class ResumeRecord:
    """Where to go on, as a topic has it."""

    checkpoint: Checkpoint
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    job: str = ""
    """The job that writes, "" for a pipeline."""
    copy: CopyPosition | None = None
    """The copy that the topics begin with. Unless it has ended, there is no checkpoint."""

    def to_bytes(self) -> bytes:
        """Return the record's JSON; `parse` is the inverse."""
        document: dict[str, Any] = {
            "commit_ts": self.checkpoint.commit_ts,
            "schema_version": self.checkpoint.schema_version,
            "job": self.job,
            "topics": {name: list(state) for name, state in self.topics.items()},
        }
        if self.copy is not None:
            document["copy"] = self.copy._asdict()
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, value: bytes, place: str) -> ResumeRecord:
        """Read a record.

        Raises ApplyError that names `place` if it is none, NewerCheckpointError if a later version
        wrote it.
        """
        try:
            document = json.loads(value)
            refuse_newer(f"the resume record in {place.rstrip(',')}", document)
            topics = {name: TopicState(*state) for name, state in document["topics"].items()}
            checkpoint = Checkpoint(int(document["commit_ts"]), int(document["schema_version"]))
            copied = document.get("copy")
            position = CopyPosition(**{**copied, "rows": tuple(copied["rows"])}) if copied else None
            return cls(checkpoint, topics, str(document["job"]), position)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ApplyError(
                f"{place} holds no resume record: {error!r}",
                hint="name a topic of its own in [kafka] resume-topic",
            ) from error


class Place(NamedTuple):
    """Where the messages of a table go."""

    topic: str
    dispatch: Dispatch
    partitions: int
    of_table: int
    """The hash of the table's name."""

    def partition(self, row_hash: int, commit_ts: int) -> int:
        """Return the partition of a row's message."""
        if self.dispatch.kind == PARTITION_0:
            return PARTITION
        if self.dispatch.kind == BY_COMMIT_TS:
            return commit_ts % self.partitions
        return (row_hash if self.dispatch.by_values else self.of_table) % self.partitions


class Topics:
    """The topics of one pipeline. Used by one thread."""

    def __init__(self, options: Kafka, client: KafkaClient) -> None:
        """Keep the options; nothing is asked of the brokers yet."""
        self._options = options
        self._client = client
        self._routing = options.routing
        self._places: dict[bytes, Place] = {}
        self._last: tuple[tuple[tuple[str, bytes], ...], Place] | None = None
        """The headers of the last message that was asked about, and its place."""
        self.known: dict[str, TopicState] = {}
        self.grown: dict[str, int] = {}
        """Topics with another number of partitions than before, by the number before."""

    def resume_from(self, recorded: Mapping[str, TopicState]) -> None:
        """Take up what a record remembers. Raises ApplyError where the brokers have other topics.

        An operator who sets `partitions` to the number that a topic has now accepts it.
        """
        self._places.clear()
        self._last = None
        self.known, self.grown = dict(recorded), {}
        if self._routing.is_one_partition:
            return
        there = self._client.partitions_there() if recorded else {}
        for name, state in recorded.items():
            found = there.get(name, 0)
            if not found:
                raise ApplyError(
                    f"topic {name!r} is not on {self._options.brokers} any more: it had"
                    f" {state.partitions} partitions, and messages through an earlier checkpoint",
                    hint=(
                        "restore the topic, or name new topics and another [kafka] resume-topic,"
                        " and fill them with `sluice reapply --to TARGET.toml`"
                    ),
                )
            if found != state.partitions:
                if self._options.partitions != found:
                    raise ApplyError(
                        f"topic {name!r} on {self._options.brokers} has {found} partitions, it had"
                        f" {state.partitions}: keys would move to other partitions, in which"
                        " readers could meet a later change first",
                        hint=(
                            f"let all readers reach the end of {name}, then set [kafka] partitions"
                            f" = {found}; or name new topics"
                        ),
                    )
                self.grown[name] = state.partitions
                self.known[name] = state._replace(partitions=found)

    def make(self, names: Iterable[TableName]) -> None:
        """Make the topics of tables unless they are there. Raises ApplyError."""
        for name in names:
            self._place(name)

    def place_of(self, message: Message) -> Place:
        """Return where a row's message goes, by its header `table`; its topic is there then."""
        if self._last is not None and self._last[0] is message.headers:
            return self._last[1]
        name = _table_of(message)
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = self._place(TableName.parse(name.decode()))
        self._last = message.headers, place
        return place

    def topic_of(self, name: TableName) -> str:
        """Return the topic of a table's rows."""
        return self._routing.topic_of(name) or self._client.topic

    def ddl_targets(self, ddl: ScopedDdl) -> Iterable[tuple[str, int]]:
        """Return (topic, partition) of all that a statement goes to.

        Of a statement about a database that is every topic.
        """
        if self._options.control_topic:
            return [(self._options.control_topic, PARTITION)]
        names = {
            TableName(table.schema_name, table.name)
            for table in (*ddl.before.values(), *ddl.effect.tables.values())
            if table is not None
        }
        if ddl.table_name:
            names.add(TableName(ddl.schema_name, ddl.table_name))
        if not names or self._routing.is_one_partition:
            return self.all_partitions()
        topics = dict.fromkeys(self._place(name).topic for name in sorted(names))
        return [(name, n) for name in topics for n in range(self.known[name].partitions)]

    def truncation_targets(
        self, ddl: ScopedDdl, targets: Iterable[tuple[str, int]]
    ) -> Iterable[tuple[str, int]]:
        """Return (topic, partition) of what op `t` goes to; `targets`: those of the statement."""
        if self._options.truncate_messages == WITH_DDL:
            return targets
        name = TableName(ddl.schema_name, ddl.table_name)
        if self._options.truncate_messages == WITH_ROWS:
            place = self._place(name)  # of its one partition: the settings' check saw to that
            return [(place.topic, place.partition(0, ddl.commit_ts))]
        log.warning(
            "TRUNCATE TABLE has no op t: readers keep the rows table=%s commit_ts=%d",
            name,
            ddl.commit_ts,
        )
        return []

    def all_partitions(self) -> Iterable[tuple[str, int]]:
        """Return (topic, partition) of every partition that readers may wait for."""
        if self._options.control_topic:
            return [(self._options.control_topic, PARTITION)]
        if self._routing.is_one_partition:
            return [(self._client.topic, PARTITION)]
        return [(name, n) for name, state in self.known.items() for n in range(state.partitions)]

    def _place(self, name: TableName) -> Place:
        dispatch = self._routing.dispatch_of(name)
        if self._routing.is_one_partition:
            return Place(self._client.topic, dispatch, 1, 0)
        topic = self.topic_of(name)
        owner = str(name) if is_of_one_table(self._routing.expression_of(name)) else ""
        known = self.known.get(topic)
        if known is None:
            known = self.known[topic] = TopicState(self._partitions(topic), owner)
        elif owner and known.table and known.table != owner:
            raise ApplyError(
                f"tables {known.table!r} and {owner!r} have one topic, {topic!r}",
                hint='give one of them a topic of its own: [kafka.topics] "SCHEMA.TABLE" = "NAME"',
            )
        return Place(topic, dispatch, known.partitions, table_hash(name))

    def _partitions(self, topic: str) -> int:
        wanted = self._options.partitions
        if wanted:
            self._client.create_topic(topic, wanted, self._options.topic_config)
        found = self._client.partitions_of(topic)
        if wanted and found != wanted:
            raise ApplyError(
                f"topic {topic!r} on {self._options.brokers} has {found} partitions, [kafka]"
                f" partitions is {wanted}",
                hint=f"set [kafka] partitions = {found}, or 0 to take every topic as it is",
            )
        return found


def _table_of(message: Message) -> bytes:
    """Return the header `table` of a row's message."""
    for name, value in message.headers:
        if name == "table":
            return value
    raise ValueError(f"a message at commit_ts {message.commit_ts} has no header 'table'")


class TransactionMarkers:
    """BEGIN and END of upstream transactions, in the form of Debezium's transaction metadata.

    The id is the commit ts: transactions that share one are one. Tombstones don't count.
    """

    def __init__(self) -> None:
        self._commit_ts = self._total = 0
        self._counts: dict[bytes, int] = {}

    def before(self, message: Message, built_ms: int) -> list[Message]:
        """Count a row's message, and return the markers that come before it."""
        found = []
        if message.commit_ts != self._commit_ts:
            found = self.end(built_ms)
            self._commit_ts = message.commit_ts
            found.append(self._marker({"status": "BEGIN"}, built_ms))
        if message.value is not None:
            name = _table_of(message)
            self._counts[name] = self._counts.get(name, 0) + 1
            self._total += 1
        return found

    def place_of(self, message: Message) -> TransactionPlace:
        """Return the place of the message that was counted last."""
        return TransactionPlace(self._total, self._counts.get(_table_of(message), 0))

    def end(self, built_ms: int) -> list[Message]:
        """Return the END of the transaction that is open, if one is."""
        if not self._commit_ts:
            return []
        counted = [
            {"data_collection": name.decode(), "event_count": count}
            for name, count in self._counts.items()
        ]
        marker = {
            "status": "END",
            "event_count": self._total,
            "data_collections": counted,
        }
        found = [self._marker(marker, built_ms)]
        self._commit_ts, self._total, self._counts = 0, 0, {}
        return found

    def _marker(self, more: dict[str, Any], built_ms: int) -> Message:
        """Return a marker's message."""
        identity = {"id": str(self._commit_ts)}
        counts = {"event_count": None, "data_collections": None}
        value: dict[str, Any] = identity | counts | more | {"ts_ms": built_ms}
        headers = (("commit_ts", b"%d" % self._commit_ts),)
        key, text = (json.dumps(each, separators=(",", ":")) for each in (identity, value))
        return Message(self._commit_ts, key.encode(), text.encode(), headers)

"""Send the rows that a copy read, each chunk once, to topics whose replication begins behind them.

The copy's position is in the resume record, in the Kafka transaction of the chunks before it. So a
process that was killed in any place goes on behind the last chunk that is there whole, and one that
was replaced is fenced. Chunks go out in their order: one number tells all that is there. The record
has a checkpoint only once the copy has ended; until then no pipeline writes there.

Rows of a copy have no transaction, so none is in the transaction topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sluice.etl.changes.messages import BINLOG, Message, split_changes
from sluice.etl.changes.steps import MessageSchema
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.sinks._kafka_topics import CopyPosition, ResumeRecord
from sluice.etl.downstream.sinks.kafka import KafkaSink, client_of, is_unused
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.etl.settings import Kafka
from sluice.tidb.table_name import TableName, abbreviate

__all__ = ["CopyPosition", "KafkaCopy", "MessageLoad", "copy_problems"]

_MAX_SHOWN = 10
_ELSEWHERE = "name new topics, another [kafka] resume-topic and savepoint"


class MessageLoad(NamedTuple):
    """Messages of rows: frames, and the schemas that they refer to."""

    schemas: Sequence[MessageSchema]
    payload: Any
    rows: int


class KafkaCopy(KafkaSink):
    """The topics of one pipeline, while a job copies rows there.

    Every method raises ApplyError, CheckpointMovedError, KafkaUnavailableError.
    """

    def __init__(self, options: Kafka, cluster_id: int, copying: str, tables: int) -> None:
        """Create the copy's sink. `copying`: the job; `tables`: how many it has planned."""
        super().__init__(options, cluster_id)
        self._copying = copying
        self._tables = tables

    def begin(self, names: Iterable[TableName]) -> CopyPosition:
        """Fence other processes, make the tables' topics, and return how far the job is."""
        checkpoint = self.recover()
        if self._copy is not None:
            return self._copy
        if checkpoint is not None:
            raise ApplyError(
                f"{self.address} is complete through {checkpoint.commit_ts}: it was written before",
                hint=_ELSEWHERE,
            )
        self._topics.make(names)
        position = CopyPosition(self._copying, 0, (0,) * self._tables)
        self.commit(position)
        return position

    def write(self, load: MessageLoad) -> int:
        """Send a load's messages, and return their bytes. `commit` makes them visible."""
        for row_hash, message in split_changes(load.payload):
            self._send_change(row_hash, message, load.schemas)
        return len(load.payload)

    def commit(self, position: CopyPosition) -> None:
        """Make all chunks before `position.next` visible."""
        self._save_position(Checkpoint(0), position, f"copying chunks before {position.next}")

    def end(self, checkpoint: Checkpoint, position: CopyPosition) -> None:
        """End the copy: a pipeline goes on from `checkpoint`."""
        self._send_watermark(checkpoint.commit_ts)
        ended = position._replace(has_ended=True)
        self._save_position(checkpoint, ended, f"ending the copy at {checkpoint.commit_ts}")
        self._save(checkpoint)

    def give_up(self) -> None:
        """Forget the copy's position. Its messages stay: no message can be taken back."""
        self.recover()
        if self._copy is None:
            return
        if self._copy.has_ended:
            raise ApplyError(f"{self.address}: the copy {self._copying} has ended: it is done")
        key = self._client.transactional_id.encode()
        self._send(Message(0, key, None), self._resume_topic)
        self._sender.commit("giving up the copy")
        self._copy = None

    def _save_position(self, checkpoint: Checkpoint, position: CopyPosition, doing: str) -> None:
        """Make what was sent visible, with how far the copy is then."""
        self._commit(ResumeRecord(checkpoint, self._topics.known, self._job, position), doing)
        self._copy = position

    def _check_copy(self, record: ResumeRecord | None) -> None:
        """Refuse what another job has begun."""
        copied = record.copy if record else None
        if copied is not None and copied.job != self._copying:
            raise ApplyError(
                f"{self.address}: another job, {copied.job}, copies there or has done so",
                hint=_ELSEWHERE,
            )


def copy_problems(options: Kafka, cluster_id: int, names: Sequence[TableName]) -> list[str]:
    """Return why a copy can't begin in the topics; fences no writer.

    Raises KafkaUnavailableError, ApplyError.
    """
    if options.format == BINLOG:
        return [
            "[kafka] format = 'binlog' has transactions alone, and no form for rows that were there"
            " before: choose another format"
        ]
    if not options.has_resume_record:
        return [
            "a copy needs a resume record, which shows how far it is: name a [kafka] resume-topic"
        ]
    problems = []
    if not is_unused(options, cluster_id):
        problems.append(f"the pipeline has written to its topics before: {_ELSEWHERE}")
    client = client_of(options, cluster_id)
    routing = options.routing
    topics = dict.fromkeys(routing.topic_of(name) or client.topic for name in names)
    if held := client.topics_with_messages(list(topics)):
        shown = abbreviate(held, _MAX_SHOWN)
        problems.append(f"there are messages in {shown}: delete these topics, or name others")
    return problems

"""Write steps to a downstream: each sink is one module that implements `Sink`.

`sluice.etl.apply` uses only what is exported here. What writes loads on first use: reading a
checkpoint needs no Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.downstream.sinks._checkpoint_reader import (
    hold_checkpoint,
    read_checkpoint,
    read_writer,
)
from sluice.etl.lazy_exports import lazy_getattr
from sluice.etl.settings import Downstream, File, Kafka, Settings, Target

if TYPE_CHECKING:
    from sluice.etl.downstream.sinks.chunk_writer import AlignedChunkRows, ChunkLoad
    from sluice.etl.downstream.sinks.mysql import MySQLSink
    from sluice.etl.downstream.sinks.sink import (
        AcceptsChunks,
        ApplyError,
        DrainerTakeover,
        GuardsConflicts,
        RemembersBlocked,
        Sink,
        SinkResult,
        TopicCounts,
    )

__all__ = [
    "AcceptsChunks",
    "AlignedChunkRows",
    "ApplyError",
    "ChunkLoad",
    "DrainerTakeover",
    "GuardsConflicts",
    "RemembersBlocked",
    "Sink",
    "SinkResult",
    "TopicCounts",
    "hold_checkpoint",
    "open_sink",
    "read_checkpoint",
    "read_writer",
    "write_plan_of_sink",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "AlignedChunkRows": "sluice.etl.downstream.sinks.chunk_writer",
        "ChunkLoad": "sluice.etl.downstream.sinks.chunk_writer",
        "AcceptsChunks": "sluice.etl.downstream.sinks.sink",
        "ApplyError": "sluice.etl.downstream.sinks.sink",
        "DrainerTakeover": "sluice.etl.downstream.sinks.sink",
        "GuardsConflicts": "sluice.etl.downstream.sinks.sink",
        "RemembersBlocked": "sluice.etl.downstream.sinks.sink",
        "Sink": "sluice.etl.downstream.sinks.sink",
        "SinkResult": "sluice.etl.downstream.sinks.sink",
        "TopicCounts": "sluice.etl.downstream.sinks.sink",
    },
)


def open_sink(settings: Settings, cluster_id: int, job: str = "") -> Sink:
    """Return the sink that the settings name; it connects at `recover`.

    `job` is "" for a pipeline.
    """
    match settings.target:
        case File() as folder:
            from sluice.etl.downstream.sinks.file import FileSink

            return FileSink(folder, cluster_id, job)
        case Kafka() as topic:
            from sluice.etl.downstream.sinks.kafka import KafkaSink

            return KafkaSink(topic, cluster_id, job)
        case Downstream() as database:
            from sluice.etl.downstream.sinks.mysql import ChangeOrigin

            kind = _database_kind(settings.apply.mode)
            return kind.open(
                database,
                ChangeOrigin.from_upstream(settings.upstream, settings.rules, database.ring),
                cluster_id,
            )


def write_plan_of_sink(target: Target, mode: str) -> str:
    """Return the name of the write planner or encoder that the target's sink takes.

    `sluice.etl.changes.write_plans` has them; `mode` is ``[apply] mode``.
    """
    match target:
        case File():
            from sluice.etl.downstream.sinks.file import FileSink

            return FileSink.write_plan
        case Kafka():
            from sluice.etl.downstream.sinks.kafka import write_plan_of_topic

            return write_plan_of_topic(target)
        case Downstream():
            return _database_kind(mode).write_plan


def _database_kind(mode: str) -> type[MySQLSink]:
    if mode == "parallel":
        from sluice.etl.downstream.sinks.mysql_parallel import ParallelMySQLSink

        return ParallelMySQLSink
    from sluice.etl.downstream.sinks.mysql import MySQLSink

    return MySQLSink

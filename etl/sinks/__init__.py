"""Where changes go. A sink is one module that implements `Sink`; `etl.apply` sees only what is exported here."""

from typing import TYPE_CHECKING

from etl.settings import Downstream, File, Kafka, Settings, Target
from etl.sinks._checkpoint_reader import hold_checkpoint, read_checkpoint, read_writer
from etl.sinks.chunk_writer import Chunk, ChunkLoad
from etl.sinks.sink import ApplyError, Remembers, Sink, TakesChunks, TakesOver, Written

if TYPE_CHECKING:
    from etl.sinks.mysql import MySQLSink

__all__ = [
    "ApplyError",
    "Chunk",
    "ChunkLoad",
    "Remembers",
    "Sink",
    "TakesChunks",
    "TakesOver",
    "Written",
    "hold_checkpoint",
    "open_sink",
    "read_checkpoint",
    "read_writer",
    "sink_shape",
]


def open_sink(settings: Settings, cluster_id: int, job: str = "") -> Sink:
    """The sink that the settings name; it connects at `recover`. `job`: who writes there, "" for a pipeline."""
    match settings.target:
        case File() as folder:
            from etl.sinks.file import FileSink

            return FileSink(folder, cluster_id, job)
        case Kafka() as topic:
            from etl.sinks.kafka import KafkaSink

            return KafkaSink(topic, cluster_id, job)
        case Downstream() as database:
            from etl.sinks.mysql import Origin

            kind = _database_kind(settings.apply.mode)
            return kind.open(database, Origin.of(settings.upstream, settings.rules), cluster_id)


def sink_shape(target: Target, mode: str) -> str:
    """The shape of the steps that the target's sink takes, see `etl.shapes`; `mode` is ``[apply] mode``."""
    match target:
        case File():
            from etl.sinks.file import FileSink

            return FileSink.shape
        case Kafka():
            from etl.sinks.kafka import KafkaSink

            return KafkaSink.shape
        case Downstream():
            return _database_kind(mode).shape


def _database_kind(mode: str) -> "type[MySQLSink]":
    if mode == "parallel":
        from etl.sinks.mysql_parallel import ParallelMySQLSink

        return ParallelMySQLSink
    from etl.sinks.mysql import MySQLSink

    return MySQLSink

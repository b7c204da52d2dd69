"""Where changes go. A sink is one module that implements `Sink`; `etl.apply` sees only what is exported here."""

from typing import TYPE_CHECKING

from etl.settings import Settings
from etl.sinks._checkpoint_reader import read_checkpoint, read_writer
from etl.sinks.sink import ApplyError, Remembers, Sink, TakesOver, Written

if TYPE_CHECKING:
    from etl.sinks.file import FileSink
    from etl.sinks.kafka import KafkaSink
    from etl.sinks.mysql import MySQLSink

__all__ = [
    "ApplyError",
    "Remembers",
    "Sink",
    "TakesOver",
    "Written",
    "open_sink",
    "read_checkpoint",
    "read_writer",
    "sink_shape",
]


def open_sink(settings: Settings, cluster_id: int) -> Sink:
    """The sink that the settings name; it connects at `recover`."""
    return _kind(settings).open(settings, cluster_id)


def sink_shape(settings: Settings) -> str:
    """The shape of the steps that the settings' sink takes, see `etl.shapes`."""
    return _kind(settings).shape


def _kind(settings: Settings) -> "type[FileSink | KafkaSink | MySQLSink]":
    if settings.downstream.type == "file":
        from etl.sinks.file import FileSink

        return FileSink
    if settings.downstream.type == "kafka":
        from etl.sinks.kafka import KafkaSink

        return KafkaSink
    if settings.apply.mode == "parallel":
        from etl.sinks.mysql_parallel import ParallelMySQLSink

        return ParallelMySQLSink
    from etl.sinks.mysql import MySQLSink

    return MySQLSink

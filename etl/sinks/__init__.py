"""Where changes go. A sink is one module that implements `Sink`; `etl.apply` sees only what is exported here."""

from etl.settings import Settings
from etl.sinks.sink import ApplyError, Sink, Written

__all__ = ["ApplyError", "Sink", "Written", "open_sink", "sink_shape"]


def open_sink(settings: Settings, cluster_id: int) -> Sink:
    """The sink that the settings name; it connects at `recover`."""
    from etl.sinks.mysql import MySQLSink

    return MySQLSink.open(settings, cluster_id)


def sink_shape(settings: Settings) -> str:
    """The shape of the steps that the settings' sink takes, see `etl.shapes`."""
    from etl.sinks.mysql import MySQLSink

    return MySQLSink.shape

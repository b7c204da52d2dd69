"""Where changes go. A sink is one module; `etl.apply` sees only what is exported here."""

from etl.sinks.mysql import DownstreamError, LoadOutcome, MySQLSink, is_transient

__all__ = ["DownstreamError", "LoadOutcome", "MySQLSink", "is_transient"]

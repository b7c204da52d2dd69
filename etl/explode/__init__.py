"""A pump's range becomes a part of the relay log. Runs in Spark's workers."""

from etl.explode.exploder import BinlogDecodeError, DdlRecord, Exploder
from etl.explode.source import PumpRange, read_range
from etl.explode.worker import STATS_SCHEMA, TASK_SCHEMA, LandRanges

__all__ = [
    "STATS_SCHEMA",
    "TASK_SCHEMA",
    "BinlogDecodeError",
    "DdlRecord",
    "Exploder",
    "LandRanges",
    "PumpRange",
    "read_range",
]

"""Turn a pump's range into a part of the relay log, in Spark's workers."""

from sluice.etl.landing.extract.row_extractor import BinlogDecodeError, DdlRecord, RowExtractor
from sluice.etl.landing.extract.source import PumpRange, read_range
from sluice.etl.landing.extract.worker import (
    STATS_SCHEMA,
    TASK_SCHEMA,
    WITHOUT_VALUES,
    LandRanges,
)

__all__ = [
    "STATS_SCHEMA",
    "TASK_SCHEMA",
    "WITHOUT_VALUES",
    "BinlogDecodeError",
    "DdlRecord",
    "LandRanges",
    "PumpRange",
    "RowExtractor",
    "read_range",
]

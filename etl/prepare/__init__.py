"""Landed windows become steps. Runs in Spark's workers."""

from etl.prepare._documents import BatchDocument, BegunFlight, CountedBefore, WindowDocument
from etl.prepare._late_changes import Move, kept_changes, move_of, relocate
from etl.prepare._options import PrepareOptions
from etl.prepare._windows import prepare, prepare_steps
from etl.prepare.worker import PrepareWindows
from upstream.partitions import PartitionError, partition_ids, partition_of

__all__ = [
    "BatchDocument",
    "BegunFlight",
    "CountedBefore",
    "Move",
    "PartitionError",
    "PrepareOptions",
    "PrepareWindows",
    "WindowDocument",
    "kept_changes",
    "move_of",
    "partition_ids",
    "partition_of",
    "prepare",
    "prepare_steps",
    "relocate",
]

"""Turn landed windows into steps, in Spark's workers."""

from sluice.etl.changes.planning._lost_changes import LOST_BOTH, LOST_NEW, LOST_OLD, LostChange
from sluice.etl.changes.planning._marked_transactions import find_marked
from sluice.etl.changes.planning._partition_moves import (
    PartitionMove,
    move_of,
    relocate,
    surviving_changes,
)
from sluice.etl.changes.planning._payloads import (
    BatchPayload,
    InFlightPayload,
    PrepareOptions,
    RecountRange,
    SharedPayload,
    WindowPayload,
)
from sluice.etl.changes.planning._selected_rows import selected_changes
from sluice.etl.changes.planning._soft_deletes import marked_changes
from sluice.etl.changes.planning._windows import prepare, prepare_steps
from sluice.tidb.partitions import PartitionError, partition_ids, partition_of

__all__ = [
    "LOST_BOTH",
    "LOST_NEW",
    "LOST_OLD",
    "BatchPayload",
    "InFlightPayload",
    "LostChange",
    "PartitionError",
    "PartitionMove",
    "PrepareOptions",
    "RecountRange",
    "SharedPayload",
    "WindowPayload",
    "find_marked",
    "marked_changes",
    "move_of",
    "partition_ids",
    "partition_of",
    "prepare",
    "prepare_steps",
    "relocate",
    "selected_changes",
    "surviving_changes",
]

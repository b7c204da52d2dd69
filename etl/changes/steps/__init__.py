"""Define the contract between preparing and the sinks."""

from sluice.etl.changes.steps._details import (
    CommitDetail,
    DeleteDetail,
    DroppedUniqueIndex,
    DropUniqueness,
    FlushDetail,
    HoldAsBytes,
    InFlightDetail,
    LatestImagesDetail,
    ListedRows,
    LoadDetail,
    RowsDetail,
    ScopedDdl,
    StepDetail,
    SurvivingRows,
    TransactionDetail,
)
from sluice.etl.changes.steps._step import STEP_SCHEMA, ChangeError, Step, from_batches, lists_from_batches, to_batches

__all__ = [
    "STEP_SCHEMA",
    "ChangeError",
    "CommitDetail",
    "DeleteDetail",
    "DropUniqueness",
    "DroppedUniqueIndex",
    "FlushDetail",
    "HoldAsBytes",
    "InFlightDetail",
    "LatestImagesDetail",
    "ListedRows",
    "LoadDetail",
    "RowsDetail",
    "ScopedDdl",
    "Step",
    "StepDetail",
    "SurvivingRows",
    "TransactionDetail",
    "from_batches",
    "lists_from_batches",
    "to_batches",
]

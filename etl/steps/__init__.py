"""The contract between preparing and the sinks."""

from etl.steps._details import (
    BytesDetail,
    CommitDetail,
    DeleteDetail,
    Detail,
    FlightDetail,
    FlushDetail,
    KeptRows,
    ListedRows,
    LoadDetail,
    NewestDetail,
    RelaxDetail,
    RelaxedIndex,
    RowsDetail,
    ScopedDdl,
    TransactionDetail,
)
from etl.steps._step import STEP_SCHEMA, ChangeError, Step, from_batches, lists_from_batches, to_batches

__all__ = [
    "STEP_SCHEMA",
    "BytesDetail",
    "ChangeError",
    "CommitDetail",
    "DeleteDetail",
    "Detail",
    "FlightDetail",
    "FlushDetail",
    "KeptRows",
    "ListedRows",
    "LoadDetail",
    "NewestDetail",
    "RelaxDetail",
    "RelaxedIndex",
    "RowsDetail",
    "ScopedDdl",
    "Step",
    "TransactionDetail",
    "from_batches",
    "lists_from_batches",
    "to_batches",
]

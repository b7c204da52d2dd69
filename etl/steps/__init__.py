"""The contract between preparing and the sinks."""

from etl.steps._details import KeptRows, ScopedDdl
from etl.steps._step import STEP_SCHEMA, ChangeError, Step, describe_indexes, from_batches, to_batches

__all__ = [
    "STEP_SCHEMA",
    "ChangeError",
    "KeptRows",
    "ScopedDdl",
    "Step",
    "describe_indexes",
    "from_batches",
    "to_batches",
]

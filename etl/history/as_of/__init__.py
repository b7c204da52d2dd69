"""Compute tables of the past as of any moment of the archive.

Spark computes them from a snapshot and the changes since, without a database and without the code
that applies changes downstream: so the result can verify that as well. What only the client needs
is imported on first use, as Spark's workers import this package, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.history.as_of.fingerprint import Fingerprint, compared_columns, fingerprint
from sluice.etl.history.errors import AsOfError
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.history.as_of.api import (
        PlanExecutor,
        TimeTravelQuery,
        differences_between,
        tables_as_of,
    )
    from sluice.etl.history.as_of.by_spark import SparkExecution, run_locally
    from sluice.etl.history.as_of.frames import TableFrames, as_frames
    from sluice.etl.history.as_of.query_planner import AsOfTable

__all__ = [
    "AsOfError",
    "AsOfTable",
    "Fingerprint",
    "PlanExecutor",
    "SparkExecution",
    "TableFrames",
    "TimeTravelQuery",
    "as_frames",
    "compared_columns",
    "differences_between",
    "fingerprint",
    "run_locally",
    "tables_as_of",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "AsOfTable": "sluice.etl.history.as_of.query_planner",
        "SparkExecution": "sluice.etl.history.as_of.by_spark",
        "TableFrames": "sluice.etl.history.as_of.frames",
        "TimeTravelQuery": "sluice.etl.history.as_of.api",
        "PlanExecutor": "sluice.etl.history.as_of.api",
        "as_frames": "sluice.etl.history.as_of.frames",
        "differences_between": "sluice.etl.history.as_of.api",
        "run_locally": "sluice.etl.history.as_of.by_spark",
        "tables_as_of": "sluice.etl.history.as_of.api",
    },
)

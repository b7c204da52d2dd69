"""Copy rows that aren't in the binlog: their sources, their chunks, and each downstream once.

What only the client needs is imported on first use: Spark's workers import this package, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.copy.errors import CopyError, DumpError
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.copy.bootstrap_run import BootstrapSummary, CopyProgressCounts
    from sluice.etl.copy.dumpling import CsvFormat, DumplingOptions
    from sluice.etl.copy.plan import CopyPlan
    from sluice.etl.copy.run import (
        cancel_bootstrap,
        plan_bootstrap,
        resume_bootstrap,
        run_bootstrap,
    )
    from sluice.etl.copy.sources import BootstrapRequest

__all__ = [
    "BootstrapRequest",
    "BootstrapSummary",
    "CopyError",
    "CopyPlan",
    "CopyProgressCounts",
    "CsvFormat",
    "DumpError",
    "DumplingOptions",
    "cancel_bootstrap",
    "plan_bootstrap",
    "resume_bootstrap",
    "run_bootstrap",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "BootstrapSummary": "sluice.etl.copy.bootstrap_run",
        "BootstrapRequest": "sluice.etl.copy.sources",
        "CopyPlan": "sluice.etl.copy.plan",
        "CsvFormat": "sluice.etl.copy.dumpling",
        "DumplingOptions": "sluice.etl.copy.dumpling",
        "CopyProgressCounts": "sluice.etl.copy.bootstrap_run",
        "cancel_bootstrap": "sluice.etl.copy.run",
        "plan_bootstrap": "sluice.etl.copy.run",
        "resume_bootstrap": "sluice.etl.copy.run",
        "run_bootstrap": "sluice.etl.copy.run",
    },
)

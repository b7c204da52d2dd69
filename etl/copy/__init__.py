"""Rows that aren't in the binlog: where they come from, in which chunks, and how they are brought downstream once.

What only the client needs is imported on first use: Spark's workers come through this door, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.copy.dumpling import CsvFormat, DumplingOptions
from etl.copy.errors import CopyError, DumpError
from etl.first_use import on_first_use

if TYPE_CHECKING:
    from etl.copy.bootstrap_run import BootstrapSummary, Progress
    from etl.copy.form import wish_of
    from etl.copy.plan import CopyPlan
    from etl.copy.run import cancel_bootstrap, plan_bootstrap, resume_bootstrap, run_bootstrap
    from etl.copy.wish import BootstrapWish

__all__ = [
    "BootstrapSummary",
    "BootstrapWish",
    "CopyError",
    "CopyPlan",
    "CsvFormat",
    "DumpError",
    "DumplingOptions",
    "Progress",
    "cancel_bootstrap",
    "plan_bootstrap",
    "resume_bootstrap",
    "run_bootstrap",
    "wish_of",
]

__getattr__ = on_first_use(
    __name__,
    {
        "BootstrapSummary": "etl.copy.bootstrap_run",
        "BootstrapWish": "etl.copy.wish",
        "CopyPlan": "etl.copy.plan",
        "Progress": "etl.copy.bootstrap_run",
        "cancel_bootstrap": "etl.copy.run",
        "plan_bootstrap": "etl.copy.run",
        "resume_bootstrap": "etl.copy.run",
        "run_bootstrap": "etl.copy.run",
        "wish_of": "etl.copy.form",
    },
)

"""Rows that aren't in the binlog: where they come from, in which chunks, and how they are brought downstream once."""

from etl.copy.bootstrap import BootstrapSummary, Progress
from etl.copy.dumpling import CsvFormat, DumplingOptions
from etl.copy.errors import CopyError, DumpError
from etl.copy.plan import CopyPlan
from etl.copy.run import plan_bootstrap, run_bootstrap

__all__ = [
    "BootstrapSummary",
    "CopyError",
    "CopyPlan",
    "CsvFormat",
    "DumpError",
    "DumplingOptions",
    "Progress",
    "plan_bootstrap",
    "run_bootstrap",
]

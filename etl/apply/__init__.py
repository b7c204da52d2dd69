"""From the relay log to the downstream."""

from etl.apply._ahead import Prepare
from etl.apply._prepare_job import SparkPreparer
from etl.apply.past import PastRange, PastRangeError, apply_past
from etl.apply.run import ApplySummary, BatchReport, prepare_options, run_apply

__all__ = [
    "ApplySummary",
    "BatchReport",
    "PastRange",
    "PastRangeError",
    "Prepare",
    "SparkPreparer",
    "apply_past",
    "prepare_options",
    "run_apply",
]

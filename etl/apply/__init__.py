"""From the relay log to the downstream."""

from etl.apply.run import ApplySummary, BatchReport, prepare_options, run_apply

__all__ = ["ApplySummary", "BatchReport", "prepare_options", "run_apply"]

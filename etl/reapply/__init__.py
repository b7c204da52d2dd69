"""Past windows of the relay log, applied again: to another sink, or to rows of the running downstream."""

from etl.reapply.errors import ReapplyError
from etl.reapply.plan import ReapplyPlan, make_plan
from etl.reapply.request import Request
from etl.reapply.run import ask_for, cancel_reapply, run_reapply
from etl.reapply.summary import KIND, ReapplySummary

__all__ = [
    "KIND",
    "ReapplyError",
    "ReapplyPlan",
    "ReapplySummary",
    "Request",
    "ask_for",
    "cancel_reapply",
    "make_plan",
    "run_reapply",
]

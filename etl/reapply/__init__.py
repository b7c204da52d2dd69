"""Past windows of the relay log, applied again: to another sink."""

from etl.reapply.errors import ReapplyError
from etl.reapply.plan import ReapplyPlan, make_plan
from etl.reapply.request import Request
from etl.reapply.run import KIND, ReapplySummary, ask_for, cancel_reapply, run_reapply

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

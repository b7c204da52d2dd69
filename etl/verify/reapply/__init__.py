"""Apply past windows of the relay log again, to another sink or to rows of the downstream."""

from sluice.etl.verify.errors import ReplayRangeError
from sluice.etl.verify.reapply.plan import ReplayPlan, make_replay_plan
from sluice.etl.verify.reapply.request import ReplayRequest, ReplaySummary
from sluice.etl.verify.reapply.run import cancel_reapply, create_or_resume, run_reapply

__all__ = [
    "ReplayPlan",
    "ReplayRangeError",
    "ReplayRequest",
    "ReplaySummary",
    "cancel_reapply",
    "create_or_resume",
    "make_replay_plan",
    "run_reapply",
]

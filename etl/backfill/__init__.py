"""Tables, or rows of them, copied again beside replication: `sluice backfill`.

A job chooses a timestamp a little ahead of the cluster's clock, reads a chunk there, and hands it to the process that
applies, which writes it when the checkpoint is exactly there (`relay.appointments`). What only the client needs is
imported on first use: Spark's workers come through this door, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.backfill.errors import BackfillError
from etl.first_use import on_first_use

if TYPE_CHECKING:
    from etl.backfill.appointing import Appointing
    from etl.backfill.downstream_side import DownstreamSide
    from etl.backfill.plan import BackfillPlan, TablePlan
    from etl.backfill.request import MODES, BackfillRequest
    from etl.backfill.run import BackfillSummary, cancel_backfill, create_backfill, plan_backfill, run_backfill
    from etl.backfill.sweeping import sweep

__all__ = [
    "MODES",
    "Appointing",
    "BackfillError",
    "BackfillPlan",
    "BackfillRequest",
    "BackfillSummary",
    "DownstreamSide",
    "TablePlan",
    "cancel_backfill",
    "create_backfill",
    "plan_backfill",
    "run_backfill",
    "sweep",
]

__getattr__ = on_first_use(
    __name__,
    {
        "MODES": "etl.backfill.request",
        "Appointing": "etl.backfill.appointing",
        "BackfillPlan": "etl.backfill.plan",
        "BackfillRequest": "etl.backfill.request",
        "BackfillSummary": "etl.backfill.run",
        "DownstreamSide": "etl.backfill.downstream_side",
        "TablePlan": "etl.backfill.plan",
        "cancel_backfill": "etl.backfill.run",
        "create_backfill": "etl.backfill.run",
        "plan_backfill": "etl.backfill.run",
        "run_backfill": "etl.backfill.run",
        "sweep": "etl.backfill.sweeping",
    },
)

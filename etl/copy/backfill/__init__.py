"""Tables, or rows of them, copied again beside replication: `sluice backfill`.

A job chooses a timestamp a little ahead of the cluster's clock, reads a chunk there, and hands it
to the process that applies, which writes it when the checkpoint is exactly there
(`sluice.relay.aligned_chunks`). What only the client needs is imported on first use: Spark's
workers come through this door, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.copy.errors import BackfillError
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.copy.backfill.chunk_scheduler import AlignedChunkScheduler
    from sluice.etl.copy.backfill.downstream_session import BackfillDownstream
    from sluice.etl.copy.backfill.plan import BackfillPlan, BackfillTablePlan
    from sluice.etl.copy.backfill.request import MODES, BackfillRequest
    from sluice.etl.copy.backfill.run import (
        BackfillSummary,
        cancel_backfill,
        create_backfill,
        plan_backfill,
        remove_orphans,
        run_backfill,
    )

__all__ = [
    "MODES",
    "AlignedChunkScheduler",
    "BackfillDownstream",
    "BackfillError",
    "BackfillPlan",
    "BackfillRequest",
    "BackfillSummary",
    "BackfillTablePlan",
    "cancel_backfill",
    "create_backfill",
    "plan_backfill",
    "remove_orphans",
    "run_backfill",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "MODES": "sluice.etl.copy.backfill.request",
        "AlignedChunkScheduler": "sluice.etl.copy.backfill.chunk_scheduler",
        "BackfillPlan": "sluice.etl.copy.backfill.plan",
        "BackfillRequest": "sluice.etl.copy.backfill.request",
        "BackfillSummary": "sluice.etl.copy.backfill.run",
        "BackfillDownstream": "sluice.etl.copy.backfill.downstream_session",
        "BackfillTablePlan": "sluice.etl.copy.backfill.plan",
        "cancel_backfill": "sluice.etl.copy.backfill.run",
        "create_backfill": "sluice.etl.copy.backfill.run",
        "plan_backfill": "sluice.etl.copy.backfill.run",
        "run_backfill": "sluice.etl.copy.backfill.run",
        "remove_orphans": "sluice.etl.copy.backfill.run",
    },
)

"""Remove leftovers of finished jobs in the relay log and in the downstream; the next job does it.

A job that is killed leaves something between two removals; one that is cancelled, what applying
hasn't come to; and applying may write a result for a job that is over by then.
"""

from __future__ import annotations

import logging

from sluice.errors import SluiceError
from sluice.etl.copy.backfill.downstream_session import BackfillDownstream
from sluice.relay import RelayLog
from sluice.relay.jobs import Jobs

log = logging.getLogger("sluice.backfill")


def remove_orphans(relay: RelayLog, downstream: BackfillDownstream) -> None:
    """Remove it.

    What hinders that is logged: it hinders nothing else, and the next job tries again.
    """
    is_over = Jobs(relay.storage).is_over
    try:
        relay.aligned_chunks.sweep(is_over)
        downstream.sweep(is_over)
    except (SluiceError, OSError) as error:
        log.warning("what former jobs left behind stays until the next one: %s", error)

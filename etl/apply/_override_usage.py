"""What becomes of operators' decisions about transactions and DDL once they are applied."""

from __future__ import annotations

import logging

from sluice.etl.apply._batch import WindowBatch
from sluice.etl.changes.steps import Step
from sluice.relay import RelayLog

log = logging.getLogger("sluice.apply")


def record_begun(relay: RelayLog, batch: WindowBatch, step: Step) -> None:
    """Note which decisions a commit keeps to, behind the checkpoint's lock and before the commit: `settle_overrides`,
    and
    operators who hold the checkpoint, know from it whether a decision came in time.
    """
    relay.decisions.mark_begun([each for each in batch.decisions if each.commit_ts <= step.commit_ts])


def settle_overrides(relay: RelayLog, through_ts: int) -> list[str]:
    """Mark decisions that a checkpoint has passed as used, and take those back that came too late. Returns what is
    logged of it.
    """
    said = []
    for decision in relay.decisions.unsettled(through_ts):
        line = f"commit_ts {decision.commit_ts}: {decision}"
        if relay.decisions.is_kept(decision.commit_ts):
            relay.decisions.mark_used([decision])
        elif relay.decisions.remove(decision.commit_ts):
            line += ": too late, it was being committed and is applied; the decision is taken back"
        else:
            continue
        said.append(line)
        log.warning("%s", line)
    return said

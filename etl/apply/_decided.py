"""What becomes of operators' decisions about transactions and DDL once a batch is applied."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from etl.apply._batch import Batch
from relay import Decision, RelayLog

log = logging.getLogger("sluice.apply")


def note_used(relay: RelayLog, decisions: Sequence[Decision]) -> list[str]:
    """Record, once a checkpoint has passed them, that decisions were used, and say so; what was said."""
    relay.decisions.mark_used(decisions)
    said = [f"commit_ts {decision.commit_ts}: {decision}" for decision in decisions]
    for line in said:
        log.warning("%s", line)
    return said


def note_passed(relay: RelayLog, batch: Batch, through_ts: int) -> list[str]:
    """Both of a batch of which only a part was committed, through `through_ts`, before something came in between: what
    is prepared next begins behind it. What was said.
    """
    if through_ts <= batch.after_ts:
        return []
    now = relay.decisions.list(batch.after_ts, min(through_ts, batch.hi))
    used = [decision for decision in batch.decisions if decision.commit_ts <= through_ts]
    return note_used(relay, used) + note_late(relay, now, batch.decisions)


def note_late(relay: RelayLog, now: Sequence[Decision], known: Sequence[Decision]) -> list[str]:
    """Take back decisions that came while what they are about was being committed, and say so; what was said."""
    said = []
    for decision in now:
        if decision not in known and relay.decisions.remove(decision.commit_ts):
            said.append(
                f"commit_ts {decision.commit_ts}: {decision}: too late, it was being committed and is applied; the"
                " decision is taken back"
            )
            log.warning("%s", said[-1])
    return said

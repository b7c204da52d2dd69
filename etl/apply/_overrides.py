"""Enforce what operators decided: a blocked batch stays blocked, and overrides are settled once."""

from __future__ import annotations

import logging

from sluice.etl.apply._batch import WindowBatch
from sluice.etl.changes.steps import CommitDetail, Step
from sluice.etl.downstream import Checkpoint, InFlight
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.relay import RelayLog

log = logging.getLogger("sluice.apply")


def check_blocked(checkpoint: Checkpoint | None, relay: RelayLog) -> None:
    """Raise ApplyError if the in-flight batch is blocked and no operator has decided since.

    It stays blocked for every process and in every mode.
    """
    in_flight = checkpoint.in_flight if checkpoint else None
    if checkpoint is None or in_flight is None or in_flight.refused is None:
        return
    if _has_new_overrides(checkpoint.commit_ts, in_flight, relay):
        log.warning("continuing as operators decided, after: %s", in_flight.refused.text)
        return
    raise ApplyError(
        f"changes between commit_ts {checkpoint.commit_ts} and {in_flight.until} were refused"
        " before, when others of them were written already, and no operator has decided since:"
        f" {in_flight.refused.text.rstrip('.')}.",
        hint=(
            "leave a transaction out (`sluice txn skip COMMIT_TS`), or have every row of these"
            " changes written as it is upstream, whatever is there:"
            f" `sluice accept {in_flight.refused.token}`"
        ),
    )


def _has_new_overrides(after_ts: int, in_flight: InFlight, relay: RelayLog) -> bool:
    assert in_flight.refused is not None
    decided = {override.named for override in relay.overrides.list(after_ts, in_flight.until)}
    return (
        decided != set(in_flight.refused.decided)
        or relay.control().accepted == in_flight.refused.token
    )


def record_begun(relay: RelayLog, batch: WindowBatch, step: Step) -> None:
    """Record which overrides a commit obeys, behind the checkpoint's lock and before the commit.

    From that `settle_overrides`, and operators holding the checkpoint, know whether an override
    came in time.
    """
    rows_through = step.detail.rows_through if isinstance(step.detail, CommitDetail) else 0
    through = max(step.commit_ts, rows_through)
    relay.overrides.mark_begun([each for each in batch.overrides if each.commit_ts <= through])


def settle_overrides(relay: RelayLog, through_ts: int) -> list[str]:
    """Mark overrides that the checkpoint has passed as used, and remove those that came too late.

    Returns the lines that it logs.
    """
    lines = []
    for override in relay.overrides.unsettled(through_ts):
        line = f"commit_ts {override.commit_ts}: {override}"
        if relay.overrides.is_kept(*override.key):
            relay.overrides.mark_used([override])
        elif relay.overrides.remove(*override.key):
            line += ": too late, the commit was in progress and is applied; the override is removed"
        else:
            continue
        lines.append(line)
        log.warning("%s", line)
    return lines

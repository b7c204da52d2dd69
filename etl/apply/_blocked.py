"""What was refused in a flight stays refused, whoever tries again and in which mode, until operators decide."""

from __future__ import annotations

import logging

from sluice.etl.downstream import Checkpoint, InFlight
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.relay import RelayLog

log = logging.getLogger("sluice.apply")


def check_blocked(checkpoint: Checkpoint | None, relay: RelayLog) -> None:
    """Raise ApplyError if the flight of the checkpoint was refused, and nobody has decided since."""
    flight = checkpoint.flight if checkpoint else None
    if checkpoint is None or flight is None or flight.refused is None:
        return
    if _has_new_overrides(checkpoint.commit_ts, flight, relay):
        log.warning("going on as operators decided, after: %s", flight.refused.text)
        return
    raise ApplyError(
        f"changes between commit_ts {checkpoint.commit_ts} and {flight.until} were refused before, when others of them"
        f" were written already, and nobody has decided since: {flight.refused.text.rstrip('.')}.",
        way_out="leave a transaction out (`sluice txn skip COMMIT_TS`), or have every row of these changes written as"
        f" it is upstream, whatever is there: `sluice accept {flight.refused.token}`",
    )


def _has_new_overrides(after_ts: int, flight: InFlight, relay: RelayLog) -> bool:
    assert flight.refused is not None
    decided = {decision.commit_ts for decision in relay.decisions.list(after_ts, flight.until)}
    return decided != set(flight.refused.decided) or relay.control().accepted == flight.refused.token

"""Note what can be restored and what was verified, for the pages' charts."""

from __future__ import annotations

import time

from sluice.etl.history.retain.status import ArchiveStatus, archive_status
from sluice.etl.settings import Settings
from sluice.relay.measures import StateHistory, StateSample
from sluice.relay.verification_log import Verifications
from sluice.tidb import tso

__all__ = ["note_state"]


def note_state(settings: Settings) -> None:
    """Look, and keep what was found for a week. Raises relay errors, OSError."""
    relay = settings.open_relay()
    verified = Verifications(relay).last().values()
    now = time.time_ns() // 1_000_000
    StateHistory(relay).note(
        StateSample(
            now,
            _restorable_ms(archive_status(settings)),
            float(now - min(table.at_ms for table in verified)) if verified else None,
        )
    )


def _restorable_ms(found: ArchiveStatus) -> float | None:
    """Return how long a range can be restored whole, None if none can."""
    since = found.promised_ts
    return float(tso.ms_between(since, found.hi)) if 0 < since < found.hi else None

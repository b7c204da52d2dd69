"""Retention as an Airflow task, the last of the DAG `archive`.

What it can't judge stays, and that is no reason not to archive: so it records the error where
`sluice status` and `sluice archive status` find it, and the DAG goes on. The next run tries again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from sluice.errors import SluiceError, ours
from sluice.etl.history.retain.run import retain
from sluice.etl.history.retain.state_sample import note_state
from sluice.etl.history.retain.status import RETAIN
from sluice.etl.settings import Settings
from sluice.relay import Failure

__all__ = ["retain_or_say_why"]

log = logging.getLogger("sluice.archive")


def retain_or_say_why(settings: Settings, got_on: Callable[[object], None]) -> dict[str, Any]:
    """Remove what may go: what was done, or `failed` and `hint`.

    Raises what passes by itself, and defects.
    """
    try:
        done = retain(settings)
    except Exception as error:
        reason = ours(error)
        if reason.transient or reason is not error:
            raise
        log.error("retention removed nothing more: %s; %s", reason, reason.hint)
        failure = Failure(RETAIN, str(reason), reason.hint, time.time_ns() // 1_000_000)
        settings.open_relay().failures.note(failure)
        return {"failed": str(reason), "hint": reason.hint}
    got_on(None)
    try:
        note_state(settings)
    except (SluiceError, OSError) as error:  # a gap in a chart
        log.warning("sample of restorable range and verification not kept: %s", error)
    return done.as_dict()

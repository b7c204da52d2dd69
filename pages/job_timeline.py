"""Make the document of a job's time line: its states, its progress, and who ordered what."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sluice.etl.settings.pipelines import NamedPipeline
from sluice.pages.actions import audit_name
from sluice.relay.audit import MAX_ENTRIES, AuditEntry, AuditLog
from sluice.relay.jobs import CANCELLING, PAUSING, RUNNING, Jobs, StateEntry, job_timeline

__all__ = ["timeline_document"]

_SAME_ORDER_MS = 60_000
"""An action writes its audit entry first, then the job's state; a slow store comes in between."""
_STATES = {"pause-job": PAUSING, "resume-job": RUNNING, "cancel-job": CANCELLING}


def timeline_document(pipeline: NamedPipeline, name: str) -> dict[str, Any]:
    """Return a job's past as JSON values, everything ascending.

    `events`: states and the pages' orders, with `what`, `by`, `message` and `hint`; `spans`: the
    times in each state; `points`: what was done by when. Raises JobError, RelayCorruptError,
    OSError.
    """
    relay = pipeline.settings.open_relay()
    job = Jobs.for_pipeline(relay).get(name)
    found = job_timeline(job)
    actions = [
        action
        for action in AuditLog(relay.place).newest(MAX_ENTRIES)
        if action.about == name and not any(_made(action, entry) for entry in found.entries)
    ]
    events = [*map(_state, found.entries), *map(_order, actions)]
    return {
        "events": sorted(events, key=lambda event: event["at_ms"]),
        "spans": [asdict(span) for span in found.spans],
        "points": [
            {"at_ms": point.at_ms, "percent": point.percent, **asdict(point.done)}
            for point in found.points
        ],
    }


def _made(action: AuditEntry, entry: StateEntry) -> bool:
    """Return whether an action made an entry of the job's state: one line is enough for both."""
    return (
        _STATES.get(action.what) == entry.state
        and entry.by == audit_name(action.by)
        and 0 <= entry.made_ms - action.at_ms < _SAME_ORDER_MS
    )


def _state(entry: StateEntry) -> dict[str, Any]:
    return {
        "at_ms": entry.made_ms,
        "what": entry.state,
        "by": entry.by,
        "run": entry.run,
        "message": entry.message,
        "hint": entry.hint,
    }


def _order(action: AuditEntry) -> dict[str, Any]:
    return {
        "at_ms": action.at_ms,
        "what": action.what,
        "by": audit_name(action.by),
        "run": 0,
        "message": action.outcome,
        "hint": "",
    }

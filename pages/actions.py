"""Run user actions and keep their audit entries.

An action needs Airflow's permission, which is among the caller's rights. Its audit entry, with the
user's name, is written before the action runs, and its outcome is recorded after.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import HTTPException, Response
from fastapi.responses import JSONResponse

from sluice.etl.settings.pipelines import NamedPipeline
from sluice.pages.caller import require_trigger
from sluice.pages.protocol import Caller
from sluice.pages.response_cache import error_response, response_cache
from sluice.relay.audit import AuditLog

__all__ = [
    "ActionRequest",
    "Outcome",
    "audit_name",
    "perform",
    "recent_actions",
    "record_read",
]


_SAME_READ_S = 600.0
"""A page asks again every few seconds, and that is one read."""
_reads: dict[tuple[str, str, str, str], float] = {}
"""Reads that are recorded, and until when (monotonic s) the same one is not again."""
_reads_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """A user's request to act on an object of a pipeline.

    `dag` is the kind of the DAG that the user must be allowed to trigger for it.
    """

    caller: Caller
    pipeline: NamedPipeline
    dag: str
    what: str
    about: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an action, for people.

    The page then triggers the DAG `dag_id`, by the user's own session with Airflow, with the values
    `conf`, and those that the DAG's run `like` had.
    """

    message: str
    dag_id: str = ""
    conf: Mapping[str, Any] = field(default_factory=dict)
    like: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the document that the page gets."""
        if not self.dag_id:
            return {"message": self.message}
        run = {"dag_id": self.dag_id, "conf": dict(self.conf), "like": self.like}
        return {"message": self.message, "run": run}


def audit_name(user: str) -> str:
    """Return the name of an Airflow user that is recorded in jobs and overrides."""
    return f"airflow {user}"


def perform(action: ActionRequest, work: Callable[[], str | Outcome]) -> Response:
    """Run `work` as `action`; respond with what `work` returns.

    Not for the event loop. Raises HTTPException 403.
    """
    require_trigger(action.caller, action.dag, action.pipeline.dag_id(action.dag))
    try:
        audit = AuditLog(action.pipeline.settings.open_relay().place)
        entry = audit.begin(action.caller.user, action.what, action.about)
        try:
            found = work()
        except Exception as error:
            audit.end(
                entry, f"refused: {error.detail if isinstance(error, HTTPException) else error}"
            )
            raise
        outcome = found if isinstance(found, Outcome) else Outcome(found)
        audit.end(entry, outcome.message)
    except HTTPException:
        raise
    except Exception as error:
        return error_response(error)
    finally:
        response_cache.forget()
    return JSONResponse(outcome.to_json())


def recent_actions(pipeline: NamedPipeline, most: int) -> list[dict[str, Any]]:
    """Return the last `most` actions, newest first. Raises RelayCorruptError, OSError."""
    audit = AuditLog(pipeline.settings.open_relay().place)
    return [entry.to_json() for entry in audit.newest(most)]


def record_read(caller: Caller, pipeline: NamedPipeline, what: str, about: str) -> None:
    """Write durably that a user reads what rows hold, before they do; once in ten minutes for each.

    Not for the event loop. Raises RelayCorruptError, OSError, SettingsError: then nothing is shown.
    """
    name, now = caller.user, time.monotonic()
    read = name, pipeline.name, what, about
    with _reads_lock:
        for old in [each for each, until in _reads.items() if until <= now]:
            del _reads[old]
        if read in _reads:
            return
    audit = AuditLog(pipeline.settings.open_relay().place, reads=True)
    audit.begin(name, what, about)
    with _reads_lock:
        _reads[read] = now + _SAME_READ_S

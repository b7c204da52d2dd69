"""Run user actions and keep their audit entries.

An action needs Airflow's permission. Its audit entry, with the user's name, is written before the
action runs, and its outcome is recorded after.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from fastapi import HTTPException, Response
from fastapi.responses import JSONResponse
from sqlalchemy import select

from sluice.errors import RequestError
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.plugins.auth import require_trigger, username
from sluice.plugins.response_cache import error_response, response_cache
from sluice.relay.audit import AuditLog

__all__ = [
    "ActionRequest",
    "NoRunError",
    "audit_name",
    "perform",
    "recent_actions",
    "record_read",
    "run_conf",
    "trigger_run",
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

    user: Any
    pipeline: NamedPipeline
    dag: str
    what: str
    about: str


def audit_name(user: Any) -> str:
    """Return the user name recorded in jobs and overrides."""
    return f"airflow {username(user)}"


def perform(action: ActionRequest, work: Callable[[], str]) -> Response:
    """Run `work` as `action`; respond with the text that `work` returns.

    Not for the event loop. Raises HTTPException 403.
    """
    require_trigger(action.user, action.pipeline.dag_id(action.dag))
    try:
        audit = AuditLog(action.pipeline.settings.open_relay().place)
        entry = audit.begin(username(action.user), action.what, action.about)
        try:
            message = work()
        except Exception as error:
            audit.end(
                entry, f"refused: {error.detail if isinstance(error, HTTPException) else error}"
            )
            raise
        audit.end(entry, message)
    except HTTPException:
        raise
    except Exception as error:
        return error_response(error)
    finally:
        response_cache.forget()
    return JSONResponse({"message": message})


def recent_actions(pipeline: NamedPipeline, most: int) -> list[dict[str, Any]]:
    """Return the last `most` actions, newest first. Raises RelayCorruptError, OSError."""
    audit = AuditLog(pipeline.settings.open_relay().place)
    return [entry.to_json() for entry in audit.newest(most)]


def record_read(user: Any, pipeline: NamedPipeline, what: str, about: str) -> None:
    """Write durably that a user reads what rows hold, before they do; once in ten minutes for each.

    Not for the event loop. Raises RelayCorruptError, OSError, SettingsError: then nothing is shown.
    """
    name, now = username(user), time.monotonic()
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


class NoRunError(RequestError):
    """No DAG run could be repeated, or triggered."""


def run_conf(dag_id: str, run_id: str) -> dict[str, Any]:
    """Return the values that a run was triggered with, {} if Airflow has removed the run."""
    with create_session() as session:
        found = session.scalars(
            select(DagRun.conf).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        ).all()
    return dict(found[0] or {}) if found else {}


def trigger_run(dag_id: str, conf: dict[str, Any], by: str) -> str:
    """Trigger a DAG run with these values, as `by` asked; return the run's id."""
    run = trigger_dag(
        dag_id, triggered_by=DagRunTriggeredByType.UI, triggering_user_name=by, conf=conf
    )
    if run is None:
        raise NoRunError(f"Airflow made no run of the DAG {dag_id}", hint="trigger it in Airflow")
    return str(run.run_id)

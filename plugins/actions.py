"""What a person orders: allowed by Airflow, kept with the name before it is done, and what came of
it after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Response
from fastapi.responses import JSONResponse

from sluice.etl.settings.pipelines import NamedPipeline
from sluice.plugins.auth import require_trigger, username
from sluice.plugins.response_cache import error_response, response_cache
from sluice.relay.audit import AuditLog

__all__ = ["ActionRequest", "audit_name", "perform", "recent_actions"]


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """Who orders what of what.

    `dag` is the kind of the DAG that one must be allowed to trigger for it.
    """

    user: Any
    pipeline: NamedPipeline
    dag: str
    what: str
    about: str


def audit_name(user: Any) -> str:
    """As whom the person is written down with jobs and decisions."""
    return f"airflow {username(user)}"


def perform(wish: ActionRequest, work: Callable[[], str]) -> Response:
    """Do what is wished for; what `work` returns is said.

    Not for the event loop. Raises HTTPException 403.
    """
    require_trigger(wish.user, wish.pipeline.dag_id(wish.dag))
    try:
        audit = AuditLog(wish.pipeline.settings.open_relay().place)
        deed = audit.begin(username(wish.user), wish.what, wish.about)
        try:
            said = work()
        except Exception as error:
            audit.end(
                deed, f"refused: {error.detail if isinstance(error, HTTPException) else error}"
            )
            raise
        audit.end(deed, said)
    except HTTPException:
        raise
    except Exception as error:
        return error_response(error)
    finally:
        response_cache.forget()
    return JSONResponse({"said": said})


def recent_actions(pipeline: NamedPipeline, most: int) -> list[dict[str, Any]]:
    """What was ordered of the pipeline lately, newest first. Raises RelayCorruptError, OSError."""
    audit = AuditLog(pipeline.settings.open_relay().place)
    return [deed.to_json() for deed in audit.newest(most)]

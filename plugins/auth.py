"""Ask Airflow's auth manager which users may view and act.

Airflow's own dependencies identify the user, from the cookie of a login or from a bearer token. The
roles are the deployment's (Simple, FAB, Keycloak …), and nothing of them is known here.
"""

from __future__ import annotations

from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, status

__all__ = [
    "ROW_READER",
    "ROW_VALUES",
    "Viewer",
    "may_read",
    "may_read_rows",
    "may_trigger",
    "require_read",
    "require_rows",
    "require_trigger",
    "require_viewer",
    "username",
]

ROW_VALUES = "Sluice row values"
"""The resource that an auth manager's role must be able to read before pages show what rows hold.
"""


async def require_viewer(user: Annotated[Any, Depends(get_user)]) -> Any:
    """Return the user, if plugins may be viewed.

    Raises HTTPException: 401 without a login, 403 without the permission.
    """
    from starlette.concurrency import run_in_threadpool

    manager = get_auth_manager()
    allowed = await run_in_threadpool(
        manager.is_authorized_view, access_view=AccessView.PLUGINS, user=user
    )
    if not allowed:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, "You have no access to plugins in this Airflow."
        )
    return user


Viewer = Annotated[Any, Depends(require_viewer)]
"""A route's parameter: the person, an Airflow `BaseUser`."""


def may_read(user: Any, dag_id: str) -> bool:
    """Return whether Airflow lets this user see that DAG.

    Asks Airflow's database: not for the event loop.
    """
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return bool(get_auth_manager().is_authorized_dag(method="GET", details=details, user=user))


def require_read(user: Any, dag_id: str) -> None:
    """Raise HTTPException 403 unless the user may see that DAG."""
    if not may_read(user, dag_id):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"Your role in Airflow can't see the DAG {dag_id}."
        )


def may_read_rows(user: Any) -> bool:
    """Return whether the user may see row values, in the pages of every pipeline they may open."""
    return bool(
        get_auth_manager().is_authorized_custom_view(
            method="GET", resource_name=ROW_VALUES, user=user
        )
    )


def require_rows(user: Any) -> None:
    """Raise HTTPException 403 unless the user may see what rows hold."""
    if not may_read_rows(user):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            "Your role in Airflow can't see what rows hold: it lacks 'can read' on"
            f" '{ROW_VALUES}'.",
        )


def _row_reader(user: Viewer) -> None:
    require_rows(user)


ROW_READER = [Depends(_row_reader)]
"""A route's `dependencies`: the user may see what rows hold."""


def may_trigger(user: Any, dag_id: str) -> bool:
    """Return whether Airflow lets the user trigger that DAG.

    Asks Airflow's database: not for the event loop.
    """
    team = DagModel.get_team_name(dag_id)
    allowed = get_auth_manager().is_authorized_dag(
        method="POST",
        access_entity=DagAccessEntity.RUN,
        details=DagDetails(id=dag_id, team_name=team),
        user=user,
    )
    return bool(allowed)


def require_trigger(user: Any, dag_id: str) -> None:
    """Raise HTTPException 403 if the user may not trigger that DAG."""
    if not may_trigger(user, dag_id):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"Your role in Airflow doesn't let you trigger the DAG {dag_id}.",
        )


def username(user: Any) -> str:
    """Return the user's name for the audit log."""
    return str(user.get_name())

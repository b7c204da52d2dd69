"""Ask Airflow's auth manager which users may view and act.

Airflow's own dependencies identify the user, from the cookie of a login or from a bearer token. The
roles are the deployment's (Simple, FAB, Keycloak …), and nothing of them is known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from fastapi import Depends, HTTPException, Request, status

__all__ = [
    "ROW_VALUES",
    "Viewer",
    "may_read",
    "may_read_rows",
    "may_trigger",
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


def may_read(request: Request, user: Any, dag_id: str) -> bool:
    """Return whether Airflow lets this user see that DAG.

    Asks Airflow's database: not for the event loop.
    """
    return _passes(requires_access_dag("GET", param_dag_id=dag_id), request, user)


def may_read_rows(user: Any) -> bool:
    """Return whether the user may see row values, in the pages of every pipeline they may open."""
    return bool(
        get_auth_manager().is_authorized_custom_view(
            method="GET", resource_name=ROW_VALUES, user=user
        )
    )


def may_trigger(request: Request, user: Any, dag_id: str) -> bool:
    """Return whether Airflow lets the user trigger that DAG.

    Asks Airflow's database: not for the event loop.
    """
    check = requires_access_dag("POST", DagAccessEntity.RUN, param_dag_id=dag_id)
    return _passes(check, request, user)


def _passes(check: Callable[..., None], request: Request, user: Any) -> bool:
    """Return whether one of the checks passes that Airflow's own routes make."""
    try:
        check(request, user)
    except HTTPException:
        return False
    return True


def username(user: Any) -> str:
    """Return the user's name for the audit log."""
    return str(user.get_name())

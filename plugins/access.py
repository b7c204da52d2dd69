"""Who may see and who may do what: Airflow's auth manager says so.

Airflow's own dependencies find the person, from the cookie of a login or from a bearer token; the roles are the
deployment's (Simple, FAB, Keycloak …), and nothing of them is known here.
"""

from __future__ import annotations

from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, status

__all__ = ["Reader", "may_trigger", "name_of", "reader", "require_trigger"]


async def reader(user: Annotated[Any, Depends(get_user)]) -> Any:
    """The person who asks, who may see plugins. Raises HTTPException: 401 for nobody, 403 for somebody who may not."""
    from starlette.concurrency import run_in_threadpool

    manager = get_auth_manager()
    allowed = await run_in_threadpool(manager.is_authorized_view, access_view=AccessView.PLUGINS, user=user)
    if not allowed:
        raise HTTPException(status.HTTP_403_FORBIDDEN, "You have no access to plugins in this Airflow.")
    return user


Reader = Annotated[Any, Depends(reader)]
"""A route's parameter: the person, an Airflow `BaseUser`."""


def may_trigger(user: Any, dag_id: str) -> bool:
    """Whether Airflow lets this person trigger that DAG. Asks Airflow's database: not for the event loop."""
    team = DagModel.get_team_name(dag_id)
    allowed = get_auth_manager().is_authorized_dag(
        method="POST",
        access_entity=DagAccessEntity.RUN,
        details=DagDetails(id=dag_id, team_name=team),
        user=user,
    )
    return bool(allowed)


def require_trigger(user: Any, dag_id: str) -> None:
    """Raises HTTPException 403 for who may not trigger that DAG."""
    if not may_trigger(user, dag_id):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"Your role in Airflow doesn't let you trigger the DAG {dag_id}."
        )


def name_of(user: Any) -> str:
    """What the person is called, for what is kept of actions."""
    return str(user.get_name())

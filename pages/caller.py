"""Give routes the user and the pipeline of a request, as Airflow's side names them."""

from __future__ import annotations

import hmac
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request, status

from sluice.etl.settings import Settings
from sluice.etl.settings.pipelines import NamedPipeline, pipelines
from sluice.pages.protocol import CALLER_HEADER, Caller

__all__ = [
    "ROW_READER",
    "ActionBody",
    "CallerParam",
    "PipelineParam",
    "SettingsParam",
    "require_rows",
    "require_trigger",
    "token_check",
]


def token_check(token: str) -> Any:
    """Return a dependency: the request has the bearer token; any has if there is none."""

    async def check(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise HTTPException(status.HTTP_401_UNAUTHORIZED, "The token is missing or wrong.")

    return Depends(check)


async def _caller(request: Request) -> Caller:
    try:
        return Caller.from_header(request.headers.get(CALLER_HEADER, ""))
    except ValueError as error:
        raise HTTPException(
            status.HTTP_400_BAD_REQUEST,
            f"Airflow and the pipeline have versions of Sluice that don't fit: {error}.",
        ) from None


CallerParam = Annotated[Caller, Depends(_caller)]
"""A route's parameter: the user, and their rights."""


def _pipeline(caller: CallerParam) -> NamedPipeline:
    return pipelines().named(caller.pipeline)


PipelineParam = Annotated[NamedPipeline, Depends(_pipeline)]
"""A route's parameter: the pipeline, which the user may see."""


def _settings(pipeline: PipelineParam) -> Settings:
    return pipeline.settings


SettingsParam = Annotated[Settings, Depends(_settings)]
"""A route's parameter: the settings of the pipeline. An error in them is shown instead of the page.
"""


async def _action(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = await request.json()  # Airflow's side has checked it
    return found


ActionBody = Annotated[dict[str, Any], Depends(_action)]
"""A route's parameter: what was ordered."""


def require_rows(caller: Caller) -> None:
    """Raise HTTPException 403 unless the user may see what rows hold."""
    if not caller.rows:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            "Your role in Airflow can't see what rows hold: it lacks 'can read' on"
            " 'Sluice row values'.",
        )


def _row_reader(caller: CallerParam) -> None:
    require_rows(caller)


ROW_READER = [Depends(_row_reader)]
"""A route's `dependencies`: the user may see what rows hold."""


def require_trigger(caller: Caller, kind: str, dag_id: str) -> None:
    """Raise HTTPException 403 unless the user may trigger the DAG of that kind."""
    if kind not in caller.may:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"Your role in Airflow doesn't let you trigger the DAG {dag_id}.",
        )

"""The page Jobs: what takes long, how far it is, and orders for who runs it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from etl.settings import Settings
from plugins.answers import answer
from plugins.chosen import Chosen
from relay import RelayLog
from relay.jobs import Jobs

__all__ = ["router"]

router = APIRouter()


@router.get("/jobs")
async def jobs(request: Request, settings: Chosen) -> Response:
    """Every job, the newest first."""
    return await answer(request, ("jobs", settings.relay.url), lambda: _jobs(settings))


def _jobs(settings: Settings) -> dict[str, Any]:
    found = Jobs(RelayLog.open(settings.relay.url).storage).list()
    return {"jobs": [job.status().to_json() for job in reversed(found)]}

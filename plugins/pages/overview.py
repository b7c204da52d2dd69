"""Serve the page Overview: where the data is, how far behind, and what holds it back."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Request, Response, status
from starlette.concurrency import run_in_threadpool

from sluice.etl import operate
from sluice.etl.downstream.ownership import PipelineIdentity
from sluice.etl.operate.overview import overview as build_overview
from sluice.etl.settings import Settings
from sluice.plugins.action_body import ActionBody
from sluice.plugins.actions import ActionRequest, audit_name, perform
from sluice.plugins.auth import Viewer
from sluice.plugins.pipeline_param import PipelineParam, SettingsParam
from sluice.plugins.response_cache import answer
from sluice.relay.measures import CounterStore

__all__ = ["router"]

router = APIRouter()

_POLL_TIMEOUT_S = 0.5
_POINTS_CACHE_TTL_S = 10.0
_DAY_MS = 86_400_000


@router.get("/overview")
async def overview(request: Request, pipeline: PipelineParam, settings: SettingsParam) -> Response:
    """Return the state of replication. A source that does not answer in time is named in it."""
    return await answer(
        request, ("overview", pipeline), lambda: build_overview(settings, _POLL_TIMEOUT_S).to_json()
    )


@router.get("/lag")
async def lag(request: Request, pipeline: PipelineParam, settings: SettingsParam) -> Response:
    """Return lag and pace over the last day, the last hour more finely."""
    return await answer(request, ("lag", pipeline), lambda: _points(settings), _POINTS_CACHE_TTL_S)


def _points(settings: Settings) -> dict[str, Any]:
    now = time.time_ns() // 1_000_000
    measures = CounterStore(
        settings.open_relay(), PipelineIdentity.from_settings(settings).downstream
    )
    return {"points": [asdict(point) for point in measures.points(now - _DAY_MS, now)]}


@router.post("/tasks/{what}")
async def tasks(
    what: Literal["pause", "resume"], pipeline: PipelineParam, user: Viewer, order: ActionBody
) -> Response:
    """Pause or resume landing, applying or both."""
    which = order.get("which", operate.BOTH)
    if which not in (operate.LAND, operate.APPLY, operate.BOTH):
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "which: land, apply or both")
    form = operate.OperateForm(what, "" if which == operate.BOTH else which, by=audit_name(user))
    action = ActionRequest(user, pipeline, "operate", what, which)
    return await run_in_threadpool(
        perform, action, lambda: operate.dispatch(pipeline.settings, form).splitlines()[-1]
    )

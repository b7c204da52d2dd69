"""The page Overview: where the data is, how far behind, and what holds it back."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Request, Response, status
from starlette.concurrency import run_in_threadpool

from etl import operate
from etl.overview import overview as look
from etl.ownership import Pipeline
from etl.settings import Settings
from plugins.access import Reader
from plugins.answers import answer
from plugins.chosen import Chosen, ChosenPipeline
from plugins.deeds import Wish, done, operator
from plugins.orders import Order
from relay.measures import Measures

__all__ = ["router"]

router = APIRouter()

_PATIENCE_S = 0.5
_POINTS_FRESH_S = 10.0
_DAY_MS = 86_400_000


@router.get("/overview")
async def overview(request: Request, pipeline: ChosenPipeline, settings: Chosen) -> Response:
    """How replication stands. Who doesn't answer soon is named in it."""
    return await answer(request, ("overview", pipeline), lambda: look(settings, _PATIENCE_S).to_json())


@router.get("/lag")
async def lag(request: Request, pipeline: ChosenPipeline, settings: Chosen) -> Response:
    """Lag and pace over the last day, the last hour more finely."""
    return await answer(request, ("lag", pipeline), lambda: _points(settings), _POINTS_FRESH_S)


def _points(settings: Settings) -> dict[str, Any]:
    now = time.time_ns() // 1_000_000
    measures = Measures(settings.open_relay(), Pipeline.of(settings).downstream)
    return {"points": [asdict(point) for point in measures.points(now - _DAY_MS, now)]}


@router.post("/tasks/{what}")
async def tasks(what: Literal["pause", "resume"], pipeline: ChosenPipeline, user: Reader, order: Order) -> Response:
    """Have landing, applying or both wait, or go on."""
    which = order.get("which", operate.BOTH)
    if which not in (operate.LAND, operate.APPLY, operate.BOTH):
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "which: land, apply or both")
    form = operate.Form(what, "" if which == operate.BOTH else which, by=operator(user))
    wish = Wish(user, pipeline, "operate", what, which)
    return await run_in_threadpool(done, wish, lambda: operate.act(pipeline.settings, form).splitlines()[-1])

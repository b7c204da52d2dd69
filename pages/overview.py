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
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.pages.actions import ActionRequest, audit_name, perform
from sluice.pages.caller import ActionBody, CallerParam, PipelineParam, SettingsParam
from sluice.pages.job_list import statuses
from sluice.pages.response_cache import answer
from sluice.relay.jobs import FINAL_STATES, JobStatus
from sluice.relay.measures import DAY, HOUR, WEEK, CounterStore, LagSeries, StateHistory

__all__ = ["router"]

router = APIRouter()

_POLL_TIMEOUT_S = 0.5
_POINTS_CACHE_TTL_S = 10.0
_MAX_JOBS_SHOWN = 200
_SERIES = {"": HOUR, "hour": HOUR, "day": DAY, "week": WEEK}


@router.get("/overview")
async def overview(request: Request, pipeline: PipelineParam, settings: SettingsParam) -> Response:
    """Return the state of replication. A source that does not answer in time is named in it."""
    return await answer(
        request, ("overview", pipeline), lambda: build_overview(settings, _POLL_TIMEOUT_S).to_json()
    )


@router.get("/lag")
async def lag(
    request: Request,
    pipeline: PipelineParam,
    settings: SettingsParam,
    span: Literal["", "hour", "day", "week"] = "",
) -> Response:
    """Return lag, pace, errors, what could be restored and verified, and runs of jobs."""
    return await answer(
        request,
        ("lag", pipeline, span),
        lambda: _past(pipeline, settings, _SERIES[span]),
        _POINTS_CACHE_TTL_S,
    )


def _past(pipeline: NamedPipeline, settings: Settings, series: LagSeries) -> dict[str, Any]:
    relay, now = settings.open_relay(), time.time_ns() // 1_000_000
    measures = CounterStore(relay, PipelineIdentity.from_settings(settings).downstream)
    first = now - series.span_ms
    jobs = [_job(status, now) for status in statuses(pipeline)]
    samples = StateHistory(relay).samples()
    left_out = max(0, sum(sample.at_ms < first for sample in samples) - 1)  # the line's beginning
    return {
        "step_ms": series.step_ms,
        "points": [asdict(point) for point in measures.points(series) if point.at_ms >= first],
        "states": [sample._asdict() for sample in samples[left_out:]],
        "jobs": [job for job in jobs if job["to_ms"] >= first][:_MAX_JOBS_SHOWN],
    }


def _job(status: JobStatus, now_ms: int) -> dict[str, Any]:
    """Return a job's span: through its last change of state, or now."""
    is_over = status.state in FINAL_STATES
    return {
        "id": status.spec.id,
        "kind": status.spec.kind,
        "state": status.state,
        "from_ms": status.spec.made_ms,
        "to_ms": status.entry.made_ms if is_over else now_ms,
    }


@router.post("/tasks/{what}")
async def tasks(
    what: Literal["pause", "resume"],
    pipeline: PipelineParam,
    caller: CallerParam,
    order: ActionBody,
) -> Response:
    """Pause or resume landing, applying or both."""
    which = order.get("which", operate.BOTH)
    if which not in (operate.LAND, operate.APPLY, operate.BOTH):
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "which: land, apply or both")
    form = operate.OperateForm(
        what, "" if which == operate.BOTH else which, by=audit_name(caller.user)
    )
    action = ActionRequest(caller, pipeline, "operate", what, which)
    return await run_in_threadpool(
        perform, action, lambda: operate.dispatch(pipeline.settings, form).splitlines()[-1]
    )

"""Serve the page Jobs: long-running jobs, their progress, and actions for their runners."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from sluice.errors import RequestError
from sluice.etl import operate
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.tasks.job_kinds import dag_run_of
from sluice.pages.actions import ActionRequest, Outcome, audit_name, perform, recent_actions
from sluice.pages.caller import (
    ActionBody,
    CallerParam,
    PipelineParam,
    SettingsParam,
    require_trigger,
)
from sluice.pages.job_list import job_document, jobs_document
from sluice.pages.job_timeline import timeline_document
from sluice.pages.protocol import Caller
from sluice.pages.response_cache import answer
from sluice.relay.jobs import CANCEL, PAUSE, PAUSING, RESUME, Jobs

__all__ = ["router"]

router = APIRouter()

JobName = Annotated[str, Path(max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]


@router.get("/jobs")
async def jobs(request: Request, pipeline: PipelineParam, settings: SettingsParam) -> Response:
    """Return the newest jobs, and the newest actions."""
    del settings  # read first, so that an error in them is the answer

    def work() -> dict[str, Any]:
        return jobs_document(pipeline) | {"actions": recent_actions(pipeline, 20)}

    return await answer(request, ("jobs", pipeline), work)


@router.get("/jobs/{name}")
async def job(
    request: Request,
    name: JobName,
    pipeline: PipelineParam,
    find: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Return one job with its tables."""
    return await answer(
        request, ("job", pipeline, name, find), lambda: job_document(pipeline, name, find)
    )


@router.get("/jobs/{name}/timeline")
async def timeline(request: Request, name: JobName, pipeline: PipelineParam) -> Response:
    """Return a job's states, its progress, and who ordered what."""
    return await answer(
        request, ("job timeline", pipeline, name), lambda: timeline_document(pipeline, name)
    )


@router.post("/jobs/{name}/{what}")
async def post_job_action(
    name: JobName,
    what: Literal["pause", "resume", "cancel"],
    pipeline: PipelineParam,
    caller: CallerParam,
    order: ActionBody,
) -> Response:
    """Ask the process that runs a job, or the DAG, to pause, resume or cancel it."""
    del order  # nothing is in it, but it must have come from a page
    action = ActionRequest(caller, pipeline, "operate", f"{what}-job", name)
    work = {"pause": _pause, "resume": _resume, "cancel": _cancel}[what]
    return await run_in_threadpool(perform, action, lambda: work(pipeline, name, caller))


def _pause(pipeline: NamedPipeline, name: str, caller: Caller) -> str:
    return operate.order_job(pipeline.settings, name, PAUSE, audit_name(caller.user))


def _resume(pipeline: NamedPipeline, name: str, caller: Caller) -> str | Outcome:
    job = _jobs(pipeline).get(name)
    if job.status().state == PAUSING:
        job.order(RESUME, audit_name(caller.user))
        return f"{name} goes on where it runs"
    origin = dag_run_of(job.spec)
    if origin is None:
        raise NoRunError(
            f"{name} was asked for by {job.spec.by}", hint=f"`sluice jobs resume {name}`"
        )
    dag, run = origin
    require_trigger(caller, dag, pipeline.dag_id(dag))
    return Outcome(f"{name} goes on in a run of its DAG", pipeline.dag_id(dag), {"job": name}, run)


def _cancel(pipeline: NamedPipeline, name: str, caller: Caller) -> str | Outcome:
    message = operate.order_job(pipeline.settings, name, CANCEL, audit_name(caller.user))
    job = _jobs(pipeline).get(name)
    origin = dag_run_of(job.spec)
    if job.status().entry.runner is not None or origin is None:
        return message
    dag, run = origin
    if dag not in caller.may:
        return f"{message}. Your role in Airflow doesn't let you trigger its DAG, which does it"
    return Outcome(
        f"{name} is given up in a run of its DAG, which takes back what it can",
        pipeline.dag_id(dag),
        {"job": name},
        run,
    )


class NoRunError(RequestError):
    """The job came from no DAG, so no run can continue it."""


def _jobs(pipeline: NamedPipeline) -> Jobs:
    return Jobs.for_pipeline(pipeline.settings.open_relay())

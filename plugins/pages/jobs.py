"""Serve the page Jobs: long-running jobs, their progress, and actions for their runners."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from sluice.etl import operate
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.tasks.job_kinds import dag_run_of
from sluice.plugins.action_body import ActionBody
from sluice.plugins.actions import (
    ActionRequest,
    NoRunError,
    audit_name,
    perform,
    recent_actions,
    run_conf,
    trigger_run,
)
from sluice.plugins.auth import Viewer, require_trigger, username
from sluice.plugins.pages.job_list import job_document, jobs_document
from sluice.plugins.pipeline_param import PipelineParam, SettingsParam
from sluice.plugins.response_cache import answer
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


@router.post("/jobs/{name}/{what}")
async def post_job_action(
    name: JobName,
    what: Literal["pause", "resume", "cancel"],
    pipeline: PipelineParam,
    user: Viewer,
    order: ActionBody,
) -> Response:
    """Ask the process that runs a job, or the DAG, to pause, resume or cancel it."""
    del order  # nothing is in it, but it must have come from a page
    action = ActionRequest(user, pipeline, "operate", f"{what}-job", name)
    work = {"pause": _pause, "resume": _resume, "cancel": _cancel}[what]
    return await run_in_threadpool(perform, action, lambda: work(pipeline, name, user))


def _pause(pipeline: NamedPipeline, name: str, user: Any) -> str:
    return operate.order_job(pipeline.settings, name, PAUSE, audit_name(user))


def _resume(pipeline: NamedPipeline, name: str, user: Any) -> str:
    job = _jobs(pipeline).get(name)
    state = job.status().state
    if state == PAUSING:
        job.order(RESUME, audit_name(user))
        return f"{name} goes on where it runs"
    return f"{name} goes on in the run {_retrigger_dag(pipeline, name, user)} of its DAG"


def _cancel(pipeline: NamedPipeline, name: str, user: Any) -> str:
    message = operate.order_job(pipeline.settings, name, CANCEL, audit_name(user))
    job = _jobs(pipeline).get(name)
    if job.status().entry.runner is None and dag_run_of(job.spec) is not None:
        try:
            run = _retrigger_dag(pipeline, name, user)
        except NoRunError as error:
            return f"{message}. {error}"
        return f"{name} is given up in the run {run} of its DAG, which takes back what it can"
    return message


def _retrigger_dag(pipeline: NamedPipeline, name: str, user: Any) -> str:
    """Trigger the DAG that the job came from with the job's id, and the values it was given.

    Return the run's id. Raises NoRunError.
    """
    spec = _jobs(pipeline).get(name).spec
    origin = dag_run_of(spec)
    if origin is None:
        raise NoRunError(f"{name} was asked for by {spec.by}", hint=f"`sluice jobs resume {name}`")
    dag, run = origin
    dag_id = pipeline.dag_id(dag)
    require_trigger(user, dag_id)
    return trigger_run(dag_id, run_conf(dag_id, run) | {"job": name}, username(user))


def _jobs(pipeline: NamedPipeline) -> Jobs:
    return Jobs.for_pipeline(pipeline.settings.open_relay())

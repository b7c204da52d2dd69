"""The page Jobs: what takes long, how far it is, and orders for who runs it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from etl import operate
from etl.settings.pipelines import NamedPipeline
from plugins import runs
from plugins.access import Reader, name_of, require_trigger
from plugins.answers import answer
from plugins.chosen import Chosen, ChosenPipeline
from plugins.deeds import Wish, deeds, done, operator
from plugins.orders import Order
from plugins.pages.job_list import DAGS, job_document, jobs_document
from relay.jobs import CANCEL, PAUSE, PAUSING, RESUME, Jobs

__all__ = ["router"]

router = APIRouter()

JobName = Annotated[str, Path(max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]


@router.get("/jobs")
async def jobs(request: Request, pipeline: ChosenPipeline, settings: Chosen) -> Response:
    """The newest jobs, and what was ordered lately."""
    del settings  # what is wrong with them is said before anything is asked

    def work() -> dict[str, Any]:
        return jobs_document(pipeline) | {"deeds": deeds(pipeline, 20)}

    return await answer(request, ("jobs", pipeline), work)


@router.get("/jobs/{name}")
async def job(
    request: Request, name: JobName, pipeline: ChosenPipeline, find: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """One of them, with its tables."""
    return await answer(request, ("job", pipeline, name, find), lambda: job_document(pipeline, name, find))


@router.post("/jobs/{name}/{what}")
async def act(
    name: JobName, what: Literal["pause", "resume", "cancel"], pipeline: ChosenPipeline, user: Reader, order: Order
) -> Response:
    """Order something of whoever runs a job, or of the DAG that does."""
    del order  # nothing is in it, but it must have come from a page
    wish = Wish(user, pipeline, "operate", f"{what}-job", name)
    work = {"pause": _pause, "resume": _resume, "cancel": _cancel}[what]
    return await run_in_threadpool(done, wish, lambda: work(pipeline, name, user))


def _pause(pipeline: NamedPipeline, name: str, user: Any) -> str:
    return operate.order_job(pipeline.settings, name, PAUSE, operator(user))


def _resume(pipeline: NamedPipeline, name: str, user: Any) -> str:
    job = _jobs(pipeline).get(name)
    state = job.status().state
    if state == PAUSING:
        job.order(RESUME, operator(user))
        return f"{name} goes on where it runs"
    return f"{name} goes on in the run {_again(pipeline, name, user)} of its DAG"


def _cancel(pipeline: NamedPipeline, name: str, user: Any) -> str:
    said = operate.order_job(pipeline.settings, name, CANCEL, operator(user))
    job = _jobs(pipeline).get(name)
    if job.status().entry.runner is None and runs.run_of(job.spec.by) is not None and job.spec.kind in DAGS:
        try:
            run = _again(pipeline, name, user)
        except runs.NoRunError as error:
            return f"{said}. {error}"
        return f"{name} is given up in the run {run} of its DAG, which takes back what it can"
    return said


def _again(pipeline: NamedPipeline, name: str, user: Any) -> str:
    """Trigger the DAG that the job came from with the same values: it goes on with the job. The run's id. Raises
    NoRunError.
    """
    spec = _jobs(pipeline).get(name).spec
    run, kind = runs.run_of(spec.by), DAGS.get(spec.kind)
    if run is None or kind is None:
        raise runs.NoRunError(f"{name} was asked for by {spec.by}", way_out=f"`sluice jobs resume {name}`")
    dag_id = pipeline.dag_id(kind)
    require_trigger(user, dag_id)
    conf = runs.conf_of(dag_id, run)
    if conf is None:
        raise runs.NoRunError(
            f"Airflow has the run {run} of the DAG {dag_id} no longer",
            way_out=f"`sluice jobs resume {name}`, or trigger the DAG with the same values by its form",
        )
    return runs.trigger(dag_id, conf, name_of(user))


def _jobs(pipeline: NamedPipeline) -> Jobs:
    return Jobs.of(pipeline.settings.open_relay())

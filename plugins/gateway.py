"""Pass requests for JSON on to the pipeline's side of the pages, with the user's rights.

That side (`sluice.pages`) has the passwords of databases and stores. It is a server that
`[airflow] pages` names, or a child process where `[airflow] python` names an interpreter, or else
this process.
"""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from sluice.errors import SluiceError
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.pages.protocol import CALLER_HEADER, KINDS, Caller, error_document
from sluice.plugins.action_body import ActionBody
from sluice.plugins.auth import Viewer, may_read_rows, may_trigger, username
from sluice.plugins.backends import Backend, backend_of
from sluice.plugins.pipeline_param import PipelineParam, pipeline_for

__all__ = ["router"]

log = logging.getLogger("sluice")

router = APIRouter()

_TIMEOUT = httpx.Timeout(120.0, connect=5.0)
"""Answers that take long come as 202 within a second; a whole value may be large."""
_PASSED_ON = ("if-none-match",)
_PASSED_BACK = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-length",
        "content-security-policy",
        "content-type",
        "etag",
        "x-late-ms",
    }
)


class PagesUnreachableError(SluiceError):
    """The pipeline's side of the pages doesn't answer, or refuses this one."""

    transient = True
    hint = "look at the log of `sluice pages`, and at the api-server's"


@router.get("/quality/docs/{name}/{path:path}")
async def docs(request: Request, name: str, path: str, user: Viewer) -> Response:
    """Return a file of a pipeline's Data Docs.

    The pipeline is in the path, as links lead from one file to the other; "-" is the one without a
    name.
    """
    wanted = "" if name == "-" else name
    pipeline = await run_in_threadpool(pipeline_for, request, user, wanted)
    return await _forward(request, user, pipeline, f"quality/docs/{path}")


@router.get("/{path:path}")
async def ask(request: Request, path: str, user: Viewer, pipeline: PipelineParam) -> Response:
    """Return what the pipeline's side answers."""
    return await _forward(request, user, pipeline, path)


@router.post("/{path:path}")
async def act(
    request: Request, path: str, user: Viewer, pipeline: PipelineParam, order: ActionBody
) -> Response:
    """Have the pipeline's side do something; only a page of this site can ask for it."""
    return await _forward(request, user, pipeline, path, order)


async def _forward(
    request: Request,
    user: Any,
    pipeline: NamedPipeline,
    path: str,
    order: Mapping[str, Any] | None = None,
) -> Response:
    def prepare() -> tuple[Caller, Backend]:
        may = () if order is None else _kinds(request, user, pipeline)
        caller = Caller(username(user), pipeline.name, may_read_rows(user), may)
        return caller, backend_of(pipeline)

    caller, backend = await run_in_threadpool(prepare)
    client = httpx.AsyncClient(
        transport=backend.transport(), base_url=backend.url, timeout=_TIMEOUT
    )
    passed = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    asked = client.build_request(
        request.method,
        quote(f"/{path}"),
        params=httpx.QueryParams(request.url.query),
        headers={"accept-encoding": "identity", CALLER_HEADER: caller.to_header()}
        | dict(backend.headers)
        | passed,
        content=None if order is None else json.dumps(order),
    )
    try:
        answer = await client.send(asked, stream=True)
    except (httpx.HTTPError, ssl.SSLError, OSError) as error:
        await client.aclose()
        backend.forget()
        raise PagesUnreachableError(
            f"{backend.name} doesn't answer: {error or type(error).__name__}"
        ) from None
    if answer.status_code == 401:  # which would tell the browser that it is logged out
        await client.aclose()
        backend.forget()
        raise PagesUnreachableError(
            f"{backend.name} refuses the token",
            hint="the connection's password must be what `sluice pages` has as its token",
        )
    headers = {name: it for name, it in answer.headers.items() if name in _PASSED_BACK}
    return StreamingResponse(_body(client, answer), answer.status_code, headers)


async def _body(client: httpx.AsyncClient, answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()
        await client.aclose()


def _kinds(request: Request, user: Any, pipeline: NamedPipeline) -> tuple[str, ...]:
    return tuple(kind for kind in KINDS if may_trigger(request, user, pipeline.dag_id(kind)))


async def on_error(request: Request, error: Exception) -> Response:
    """Render an error as the pipeline's side does."""
    del request
    status, document = error_document(error)
    return JSONResponse(document, status)

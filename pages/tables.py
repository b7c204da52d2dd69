"""Serve the page Tables: rows, changes, verification and schema of each."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Annotated, Any, Literal, TypeGuard

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response, status
from starlette.concurrency import run_in_threadpool

from sluice.etl.history.tables import DownstreamTables, TableCatalog, TableSelection
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.pages.actions import ActionRequest, Outcome, perform
from sluice.pages.caller import ActionBody, CallerParam, PipelineParam
from sluice.pages.response_cache import (
    StillComputing,
    accepted,
    answer,
    error_response,
    response_cache,
)
from sluice.pages.table_list import (
    PAGE_SIZE,
    history_document,
    known_tables_and_replica,
    table_document,
    tables_document,
)

__all__ = ["router"]

router = APIRouter()

_CACHE_TTL_S = 4.0
_MAX_COMPARED, _MAX_NAME = 1000, 1000

Name = Annotated[str, Query(max_length=_MAX_NAME)]
Ts = Annotated[str, Query(pattern=r"^\d{0,19}$")]
Sort = Literal["name", "rows", "bytes", "changes", "recent", "changed", "verified", "differences"]


def _selection(
    find: Annotated[str, Query(max_length=200)] = "",
    only: Literal["", "differs", "unverified"] = "",
    sort: Sort = "name",
    down: Literal["", "1"] = "",
    page: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> TableSelection:
    return TableSelection(find, only, sort, bool(down), page * PAGE_SIZE, PAGE_SIZE)


async def _answer_known(
    request: Request,
    pipeline: NamedPipeline,
    key: Hashable,
    document: Callable[[TableCatalog, DownstreamTables, float], Any],
) -> Response:
    """Answer with what `document` makes of `known_tables_and_replica`."""
    try:
        known, _ = await response_cache.get(
            ("known tables", pipeline), lambda: known_tables_and_replica(pipeline), _CACHE_TTL_S
        )
    except StillComputing:
        return accepted()
    except Exception as error:
        return error_response(error)
    return await answer(request, ("tables", pipeline, key), lambda: document(*known), 1.0)


@router.get("/tables")
async def tables(
    request: Request,
    pipeline: PipelineParam,
    wanted: Annotated[TableSelection, Depends(_selection)],
) -> Response:
    """Return a page of the tables."""
    return await _answer_known(
        request,
        pipeline,
        wanted,
        lambda found, replica, ahead_ms: tables_document(found, replica, ahead_ms, wanted),
    )


@router.get("/tables/one")
async def table(request: Request, pipeline: PipelineParam, name: Name) -> Response:
    """Return one table."""
    return await _answer_known(
        request,
        pipeline,
        name,
        lambda found, replica, ahead_ms: table_document(found, replica, ahead_ms, name),
    )


@router.get("/tables/history")
async def history(
    request: Request, pipeline: PipelineParam, name: Name, until: Ts = ""
) -> Response:
    """Return a table's schema changes, one step back in time."""
    key = ("table history", pipeline, name, until)
    return await answer(
        request, key, lambda: history_document(pipeline, name, until), 30.0 if until else 5.0
    )


@router.post("/verify")
async def verify(pipeline: PipelineParam, caller: CallerParam, order: ActionBody) -> Response:
    """Have tables (globs) compared with the upstream, by a run of the DAG `verify`."""
    globs = order.get("tables")
    if not _are_globs(globs):
        raise HTTPException(
            status.HTTP_422_UNPROCESSABLE_CONTENT,
            f"tables: a list of 1 to {_MAX_COMPARED} names is needed",
        )
    action = ActionRequest(caller, pipeline, "verify", "verify", ", ".join(globs))
    outcome = Outcome("The comparison begins", pipeline.dag_id("verify"), {"tables": globs})
    return await run_in_threadpool(perform, action, lambda: outcome)


def _are_globs(found: object) -> TypeGuard[list[str]]:
    return (
        isinstance(found, list)
        and 0 < len(found) <= _MAX_COMPARED
        and all(isinstance(glob, str) and 0 < len(glob) <= _MAX_NAME for glob in found)
    )

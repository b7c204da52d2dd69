"""Serve the page Tables: rows, changes, verification and schema of each."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from sluice.etl.history.tables import DownstreamTables, TableCatalog, TableSelection
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.pages.caller import PipelineParam
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

Name = Annotated[str, Query(max_length=1000)]
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
    document: Callable[[TableCatalog, DownstreamTables], Any],
) -> Response:
    """Answer with what `document` makes of the known tables and of the downstream's."""
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
        request, pipeline, wanted, lambda found, replica: tables_document(found, replica, wanted)
    )


@router.get("/tables/one")
async def table(request: Request, pipeline: PipelineParam, name: Name) -> Response:
    """Return one table."""
    return await _answer_known(
        request, pipeline, name, lambda found, replica: table_document(found, replica, name)
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

"""The page Tables: rows, changes, verification and schema of each."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from etl.tables import Selection
from plugins.answers import LookingError, answer, answers, looking, told
from plugins.chosen import ChosenPipeline
from plugins.pages.table_list import PAGE, history_document, known, table_document, tables_document

__all__ = ["router"]

router = APIRouter()

_FRESH_S = 4.0

Name = Annotated[str, Query(max_length=1000)]
Ts = Annotated[str, Query(pattern=r"^\d{0,19}$")]
Sort = Literal["name", "rows", "bytes", "changes", "changed", "verified", "differences"]


def _selection(
    find: Annotated[str, Query(max_length=200)] = "",
    only: Literal["", "differs", "unverified"] = "",
    sort: Sort = "name",
    down: Literal["", "1"] = "",
    page: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Selection:
    return Selection(find, only, sort, bool(down), page * PAGE, PAGE)


@router.get("/tables")
async def tables(
    request: Request, pipeline: ChosenPipeline, wanted: Annotated[Selection, Depends(_selection)]
) -> Response:
    """A page of the tables."""
    try:
        (found, replica), _ = await answers.get(("known tables", pipeline), lambda: known(pipeline), _FRESH_S)
    except LookingError:
        return looking()
    except Exception as error:
        return told(error)
    return await answer(request, ("tables", pipeline, wanted), lambda: tables_document(found, replica, wanted), 1.0)


@router.get("/tables/one")
async def table(request: Request, pipeline: ChosenPipeline, name: Name) -> Response:
    """One of them."""
    try:
        (found, replica), _ = await answers.get(("known tables", pipeline), lambda: known(pipeline), _FRESH_S)
    except LookingError:
        return looking()
    except Exception as error:
        return told(error)
    return await answer(request, ("table", pipeline, name), lambda: table_document(found, replica, name), 1.0)


@router.get("/tables/history")
async def history(request: Request, pipeline: ChosenPipeline, name: Name, until: Ts = "") -> Response:
    """What DDL made of it, a step back in time."""
    key = ("table history", pipeline, name, until)
    return await answer(request, key, lambda: history_document(pipeline, name, until), 30.0 if until else 5.0)

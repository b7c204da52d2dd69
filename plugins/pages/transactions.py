"""The page Transactions: what was committed, by time, table and key; a transaction's rows; its way out."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response, status
from starlette.concurrency import run_in_threadpool

from etl import find, operate
from plugins.access import ROW_READER, Reader, may_read_rows, require_rows
from plugins.answers import answer
from plugins.chosen import Chosen, ChosenPipeline
from plugins.deeds import Wish, done, operator
from plugins.orders import Order
from plugins.pages.past_transactions import found_document, state_document, transaction_document, undo_document
from plugins.pages.table_list import past_of

__all__ = ["router"]

router = APIRouter()

PAGE = 50
_EVER = 1 << 62
_MOST_WHY = 1000

Commit = Annotated[str, Path(pattern=r"^\d{1,19}$")]
Moment = Annotated[str, Query(max_length=100)]
Text = Annotated[str, Query(max_length=2000)]
Kind = Literal["insert", "update", "delete", "ddl", "drop"]


def _span(since: Moment = "", until: Moment = "") -> tuple[int, int]:
    """Two TSO. Raises MomentError."""
    return operate.parse_moment(since) if since else 0, operate.parse_moment(until) if until else _EVER


def _query(
    span: Annotated[tuple[int, int], Depends(_span)],
    table: Text = "",
    where: Text = "",
    key: Text = "",
    kind: Kind | Literal[""] = "",
) -> find.Query:
    globs, kinds = tuple(filter(None, [table])), tuple(filter(None, [kind]))
    return find.Query(*span, globs, kinds, where, "newest", PAGE, key)


def _sees_rows(user: Reader, query: Annotated[find.Query, Depends(_query)]) -> bool:
    """Raises HTTPException 403 for a search by values, whose answer tells them."""
    if query.where or query.key:
        require_rows(user)
    return may_read_rows(user)


Rows = Annotated[bool, Depends(_sees_rows)]
"""A route's parameter: whether the user may see what rows hold, keys included."""


@router.get("/transactions")
async def transactions(
    request: Request, pipeline: ChosenPipeline, query: Annotated[find.Query, Depends(_query)], rows: Rows
) -> Response:
    """A step back in time: what fits, the newest first, and from where to go on."""
    key = ("transactions", pipeline, query, rows)
    return await answer(request, key, lambda: found_document(pipeline, query, keys=rows), keep=not rows)


@router.get("/transactions/{commit_ts}", dependencies=ROW_READER)
async def transaction(
    request: Request,
    commit_ts: Commit,
    pipeline: ChosenPipeline,
    table: Annotated[str, Query(max_length=1000)] = "",
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """One of them with some of its rows."""
    key = ("transaction", pipeline, commit_ts, table, offset)
    return await answer(
        request, key, lambda: transaction_document(pipeline, int(commit_ts), table, offset), 60.0, keep=False
    )


@router.get("/transactions/{commit_ts}/state")
async def state(request: Request, commit_ts: Commit, pipeline: ChosenPipeline, settings: Chosen) -> Response:
    """Whether it is downstream, and what was decided about it."""
    del settings
    return await answer(request, ("state", pipeline, commit_ts), lambda: state_document(pipeline, int(commit_ts)))


@router.get("/transactions/{commit_ts}/undo", dependencies=ROW_READER)
async def undo(request: Request, commit_ts: Commit, pipeline: ChosenPipeline) -> Response:
    """The SQL that takes it back, tried on the replica."""
    key = ("undo", pipeline, commit_ts)
    return await answer(request, key, lambda: undo_document(pipeline, int(commit_ts)), 5.0, keep=False)


@router.get("/transactions/{commit_ts}/value", dependencies=ROW_READER)
def value(
    commit_ts: Commit,
    pipeline: ChosenPipeline,
    position: Annotated[int, Query(ge=0)],
    column: Annotated[str, Query(max_length=200)],
    side: Literal["old", "new"],
) -> Response:
    """A value whole, as a file: nothing in it is taken for a page."""
    found = find.whole_value(past_of(pipeline), int(commit_ts), position, column, old=side == "old")
    data = found if isinstance(found, bytes) else (found or "").encode("utf-8", "backslashreplace")
    name = quote(f"{column}-{commit_ts}-{position}.{'bin' if isinstance(found, bytes) else 'txt'}", safe="")
    media = "application/octet-stream" if isinstance(found, bytes) else "text/plain; charset=utf-8"
    return Response(data, media_type=media, headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"})


@router.post("/transactions/{commit_ts}/{what}")
async def decide(
    commit_ts: Commit,
    what: Literal["skip-txn", "skip-ddl", "remove-decision"],
    pipeline: ChosenPipeline,
    user: Reader,
    order: Order,
) -> Response:
    """Decide about it, or take the decision back."""
    why = order.get("why", "")
    if not isinstance(why, str) or len(why) > _MOST_WHY:
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, f"why: a text of at most {_MOST_WHY} characters")
    form = operate.Form(what, commit_ts, by=operator(user), why=why)
    wish = Wish(user, pipeline, "operate", what, commit_ts)
    return await run_in_threadpool(done, wish, lambda: operate.act(pipeline.settings, form).splitlines()[-1])

"""Serve the page Transactions: what was committed, by time, table and key.

A transaction's rows; what one can do.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response, status
from starlette.concurrency import run_in_threadpool

from sluice.etl import operate
from sluice.etl.history import find
from sluice.pages.actions import ActionRequest, audit_name, perform, record_read
from sluice.pages.caller import ActionBody, CallerParam, PipelineParam, SettingsParam, require_rows
from sluice.pages.past_transactions import (
    TransactionKey,
    found_document,
    incidents_document,
    state_document,
    transaction_document,
    undo_document,
    undo_range_document,
)
from sluice.pages.response_cache import answer, exact_answer
from sluice.pages.table_list import history_log_of

__all__ = ["router"]

router = APIRouter()

PAGE_SIZE = 50
_COMMA = re.compile(r",(?![^\[]*\])")
"""Between globs; one inside of brackets is of a table's name."""
_MAX_TS = 1 << 62
_MAX_REASON_CHARS = 1000

Commit = Annotated[str, Path(pattern=r"^\d{1,19}(-\d{1,19})?$")]
"""A commit_ts, and behind a dash the start_ts of one of several that share it."""
Moment = Annotated[str, Query(max_length=100)]
Text = Annotated[str, Query(max_length=2000)]
Kind = Literal["insert", "update", "delete", "ddl", "drop"]


def _span(pipeline: PipelineParam, since: Moment = "", until: Moment = "") -> tuple[int, int]:
    """Return two TSO; times ago count from the upstream's now. Raises MomentError."""

    def moment(text: str, usual: int) -> int:
        return operate.upstream_moment(pipeline.settings, text) if text else usual

    return moment(since, 0), moment(until, _MAX_TS)


def _about(
    table: Text = "", where: Text = "", key: Text = "", kind: Kind | Literal[""] = ""
) -> find.SearchQuery:
    globs = tuple(filter(None, (glob.strip() for glob in _COMMA.split(table))))
    kinds = tuple(filter(None, [kind]))
    return find.SearchQuery(0, _MAX_TS, globs, kinds, where, "newest", PAGE_SIZE, key)


def _query(
    span: Annotated[tuple[int, int], Depends(_span)],
    about: Annotated[find.SearchQuery, Depends(_about)],
    group: Literal["", "minute", "table", "shape", "minute,table"] = "",
    sort: Literal["", "newest", "size"] = "",
    min_rows: Annotated[str, Query(pattern=r"^\d{0,7}$")] = "",
) -> find.SearchQuery:
    groups: Any = tuple(filter(None, group.split(",")))
    since, until = span
    about = replace(about, min_rows=int(min_rows or 1))
    return replace(about, since=since, until=until, order=sort or "newest", group=groups)


def _sees_rows(
    caller: CallerParam,
    pipeline: PipelineParam,
    query: Annotated[find.SearchQuery, Depends(_query)],
) -> bool:
    """Return whether the user may see rows; for a search by values they must.

    The answer to such a search reveals values. Raises HTTPException 403.
    """
    if query.where or query.key:
        require_rows(caller)
        record_read(caller, pipeline, "search", query.key or query.where)
    return caller.rows


Rows = Annotated[bool, Depends(_sees_rows)]
"""A route's parameter: whether the user may see what rows hold, keys included."""


def _reads_rows(what: str) -> list[Any]:
    """Return a route's `dependencies`: the user may see what rows hold, and it is recorded."""

    def check(caller: CallerParam, pipeline: PipelineParam, commit_ts: Commit) -> None:
        require_rows(caller)
        record_read(caller, pipeline, what, commit_ts)

    return [Depends(check)]


@router.get("/transactions")
async def transactions(
    request: Request,
    pipeline: PipelineParam,
    query: Annotated[find.SearchQuery, Depends(_query)],
    rows: Rows,
) -> Response:
    """Return matching transactions, newest first, one step back in time, and where to continue."""
    key = ("transactions", pipeline, query, rows)
    return await answer(
        request, key, lambda: found_document(pipeline, query, keys=rows), keep=not rows
    )


@router.get("/incidents")
async def incidents(
    request: Request,
    pipeline: PipelineParam,
    query: Annotated[find.SearchQuery, Depends(_query)],
    rows: Rows,
) -> Response:
    """Return what stands out among the changes, as far back as a person waits for."""
    del rows  # a search by values needs the right
    key = ("incidents", pipeline, query)
    return await exact_answer(request, key, lambda: incidents_document(pipeline, query))


def _key(commit: str) -> TransactionKey:
    commit_ts, _, start_ts = commit.partition("-")
    return int(commit_ts), int(start_ts or 0)


def _undoes(
    caller: CallerParam,
    pipeline: PipelineParam,
    query: Annotated[find.SearchQuery, Depends(_query)],
) -> find.SearchQuery:
    """Return what is to be taken back; the user may see rows, and that is recorded."""
    if not query.since:
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "since: a moment is needed")
    require_rows(caller)
    record_read(caller, pipeline, "read-undo", f"{query.since} to {query.until}")
    return query


@router.get("/undo")
async def undo_range(
    request: Request,
    pipeline: PipelineParam,
    query: Annotated[find.SearchQuery, Depends(_undoes)],
) -> Response:
    """Return what takes the row changes of a range back as one, tried on the replica."""
    key = ("undo of a range", pipeline, query)
    return await exact_answer(request, key, lambda: undo_range_document(pipeline, query))


@router.get("/transactions/{commit_ts}", dependencies=_reads_rows("read"))
async def transaction(
    request: Request,
    commit_ts: Commit,
    pipeline: PipelineParam,
    table: Annotated[str, Query(max_length=1000)] = "",
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """Return one transaction with some of its rows."""
    key = ("transaction", pipeline, commit_ts, table, offset)
    return await answer(
        request,
        key,
        lambda: transaction_document(pipeline, _key(commit_ts), table, offset),
        60.0,
        keep=False,
    )


@router.get("/transactions/{commit_ts}/state")
async def state(
    request: Request, commit_ts: Commit, pipeline: PipelineParam, settings: SettingsParam
) -> Response:
    """Return whether it is downstream, and its override."""
    del settings
    return await answer(
        request, ("state", pipeline, commit_ts), lambda: state_document(pipeline, _key(commit_ts))
    )


@router.get("/transactions/{commit_ts}/undo", dependencies=_reads_rows("read-undo"))
async def undo(request: Request, commit_ts: Commit, pipeline: PipelineParam) -> Response:
    """Return the SQL that takes a transaction back, tried on the replica."""
    key = ("undo", pipeline, commit_ts)
    return await exact_answer(request, key, lambda: undo_document(pipeline, _key(commit_ts)))


@router.get("/transactions/{commit_ts}/value", dependencies=_reads_rows("read-value"))
def value(
    commit_ts: Commit,
    pipeline: PipelineParam,
    position: Annotated[int, Query(ge=0)],
    column: Annotated[str, Query(max_length=200)],
    side: Literal["old", "new"],
) -> Response:
    """Return a whole value as a file: nothing in it is taken for a page."""
    at, start_ts = _key(commit_ts)
    past, is_old = history_log_of(pipeline), side == "old"
    found = find.load_value(past, at, position, column, old=is_old, start_ts=start_ts)
    data = found if isinstance(found, bytes) else (found or "").encode("utf-8", "backslashreplace")
    name = quote(
        f"{column}-{commit_ts}-{position}.{'bin' if isinstance(found, bytes) else 'txt'}", safe=""
    )
    media = "application/octet-stream" if isinstance(found, bytes) else "text/plain; charset=utf-8"
    return Response(
        data,
        media_type=media,
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"},
    )


@router.post("/transactions/{commit_ts}/{what}")
async def decide(
    commit_ts: Commit,
    what: Literal["skip-txn", "skip-ddl", "remove-override"],
    pipeline: PipelineParam,
    caller: CallerParam,
    order: ActionBody,
) -> Response:
    """Decide about it, or take the override back."""
    why = order.get("why", "")
    if not isinstance(why, str) or len(why) > _MAX_REASON_CHARS:
        raise HTTPException(
            status.HTTP_422_UNPROCESSABLE_CONTENT,
            f"why: a text of at most {_MAX_REASON_CHARS} characters",
        )
    form = operate.OperateForm(what, commit_ts, by=audit_name(caller.user), why=why)
    action = ActionRequest(caller, pipeline, "operate", what, commit_ts)
    return await run_in_threadpool(
        perform, action, lambda: operate.dispatch(pipeline.settings, form).splitlines()[-1]
    )

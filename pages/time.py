"""Serve the page Time: the restorable range, its holes, and a restore from a chosen moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response, status
from starlette.concurrency import run_in_threadpool

from sluice.etl.history.retain import ArchiveStatus, archive_status
from sluice.etl.tasks.form_fields import restore_request
from sluice.pages.actions import ActionRequest, Outcome, perform
from sluice.pages.caller import ActionBody, CallerParam, PipelineParam, SettingsParam
from sluice.pages.job_list import statuses
from sluice.pages.response_cache import answer, response_cache

__all__ = ["router"]

router = APIRouter()

_CACHE_TTL_S = 15.0
_MAX_TABLES_SHOWN = 200
_MAX_DRILLS_SHOWN = 50
_MAX_GAPS_SHOWN = 500


@router.get("/time")
async def time(
    request: Request,
    pipeline: PipelineParam,
    settings: SettingsParam,
    find: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Return what can be restored; only the tables whose names hold `find`."""

    def look() -> tuple[ArchiveStatus, list[dict[str, Any]]]:
        return archive_status(settings), _drills(statuses(pipeline))

    (found, drills), _ = await response_cache.get(("archive", pipeline), look, _CACHE_TTL_S)
    return await answer(
        request, ("time", pipeline, find), lambda: _document(found, find) | {"drills": drills}
    )


def _document(found: ArchiveStatus, find: str) -> dict[str, Any]:
    wanted = [table for table in found.tables if find.lower() in table.name.lower()]
    tables = {
        name: getattr(found, name)
        for name in ("unknown", "holes", "faults", "snapshots", "restorable")
    }
    return {
        "url": found.url,
        "lo": found.lo or found.whole_from_ts,
        "hi": found.hi,
        "landed_ts": found.landed_ts,
        "keep": found.keep,
        "promised_ts": found.promised_ts,
        "whole_from_ts": found.whole_from_ts,
        "held_by": found.held_by,
        "spaces": {name: asdict(space) for name, space in found.spaces.items()},
        "disks": [asdict(disk) for disk in found.disks],
        "tables": [asdict(table) for table in wanted[:_MAX_TABLES_SHOWN]],
        "tables_in_all": len(found.tables),
        "tables_found": len(wanted),
        **{
            name: [_plain(each) for each in some[:_MAX_GAPS_SHOWN]] for name, some in tables.items()
        },
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | Mapping) else asdict(value)


def _drills(found: list[Any]) -> list[dict[str, Any]]:
    drills = [status for status in found if status.spec.kind == "drill"][:_MAX_DRILLS_SHOWN]
    return [
        {
            "id": drill.spec.id,
            "state": drill.state,
            "at_ms": drill.entry.made_ms,
            "message": drill.entry.message,
            "hint": drill.entry.hint,
            **{
                name: (drill.entry.result or {}).get(name)
                for name in ("ts", "tables", "rows", "seconds")
            },
        }
        for drill in drills
    ]


@router.post("/time/restore")
async def restore(pipeline: PipelineParam, caller: CallerParam, order: ActionBody) -> Response:
    """Have the page trigger the DAG `restore`; only planned unless `plan_only` is false."""
    conf = {
        "until": _text(order, "until"),
        "tables": [_line(name) for name in order.get("tables") or []] or None,
        "plan_only": order.get("plan_only") is not False,
        "approve": False,  # by the button on the page
    }
    dag_id = pipeline.dag_id("restore")

    def work() -> Outcome:
        restore_request(conf)  # an impossible request fails here, not in a DAG run
        what = "planned" if conf["plan_only"] else "restored"
        return Outcome(f"It is {what} in a run of the DAG {dag_id}", dag_id, conf)

    about = f"{conf['until']}{' (plan only)' if conf['plan_only'] else ''}"
    return await run_in_threadpool(
        perform, ActionRequest(caller, pipeline, "restore", "restore", about), work
    )


def _text(order: Mapping[str, Any], name: str) -> str:
    value = order.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 100:
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, f"{name}: a text is needed")
    return value


def _line(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 300:
        raise HTTPException(
            status.HTTP_422_UNPROCESSABLE_CONTENT, "tables: names such as shop.orders"
        )
    return value

"""Serve the page Doctor: everything that the pipeline needs, checked, each with a way out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from sluice.etl.settings import Settings
from sluice.pages.caller import PipelineParam, SettingsParam
from sluice.pages.response_cache import answer

__all__ = ["router"]

router = APIRouter()

_CACHE_TTL_S = 30.0
"""Every check asks servers: not for each browser, and not every few seconds."""


@router.get("/doctor")
async def doctor(request: Request, pipeline: PipelineParam, settings: SettingsParam) -> Response:
    """Return the results of `sluice doctor`."""
    return await answer(request, ("doctor", pipeline), lambda: _results(settings), _CACHE_TTL_S)


def _results(settings: Settings) -> dict[str, Any]:
    from sluice.etl.operate.doctor import check_pipeline

    return {"results": [asdict(each) for each in check_pipeline(settings)]}

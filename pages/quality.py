"""Serve the page Quality: results of checks, lately and over time, and the Data Docs."""

from __future__ import annotations

import mimetypes
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response, status

from sluice.etl.settings.pipelines import NamedPipeline
from sluice.expectations import QualityResults, QualityRun
from sluice.pages.actions import record_read
from sluice.pages.caller import ROW_READER, CallerParam, PipelineParam
from sluice.pages.response_cache import answer

__all__ = ["router"]

router = APIRouter()

_MAX_RESULTS = 2000
_MAX_RUNS = 100
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    )
)
"""The Data Docs' policy: they hold examples of rows, and nothing that a row holds runs as a script.
"""


@router.get("/quality")
async def quality(request: Request, pipeline: PipelineParam, caller: CallerParam) -> Response:
    """Return the newest run suite by suite, and the runs before it."""
    return await answer(
        request,
        ("quality", pipeline, caller.rows),
        lambda: _document(pipeline, rows=caller.rows),
        5.0,
        keep=not caller.rows,
    )


def _document(pipeline: NamedPipeline, *, rows: bool) -> dict[str, Any]:
    results = QualityResults(pipeline.settings)
    runs: dict[str, list[QualityRun]] = {}
    for suite in results.runs(_MAX_RESULTS):
        runs.setdefault(suite.run or suite.id, []).append(suite)
    newest = next(iter(runs.values()), [])
    return {
        "suites": [
            _shown(suite, rows=rows).to_json() | {"ts": str(suite.ts) if suite.ts else None}
            for suite in newest
        ],
        "runs": [_run(name, suites) for name, suites in list(runs.items())[:_MAX_RUNS]],
        "docs": rows and results.docs().read("index.html") is not None,
    }


def _shown(suite: QualityRun, *, rows: bool) -> QualityRun:
    """Return the suite, without what its failures quote of rows unless `rows`."""
    if rows:
        return suite
    return replace(suite, failures=tuple(replace(one, observed="") for one in suite.failures))


def _run(name: str, suites: list[QualityRun]) -> dict[str, Any]:
    states = [suite.state for suite in suites]
    return {
        "run": name,
        "at_ms": min(suite.at_ms for suite in suites),
        "seconds": sum(suite.seconds for suite in suites),
        "suites": len(suites),
        "states": {state: states.count(state) for state in dict.fromkeys(states)},
        "expectations": sum(suite.expectations for suite in suites),
        "failed": sum(suite.failed for suite in suites),
    }


@router.get("/quality/docs/{path:path}", dependencies=ROW_READER)
def docs(path: str, pipeline: PipelineParam, caller: CallerParam) -> Response:
    """Serve a file of the pipeline's Data Docs; an empty `path` is the first one."""
    path = path or "index.html"
    if path == "index.html":
        record_read(caller, pipeline, "read-quality", pipeline.name or "-")
    page = QualityResults(pipeline.settings).docs().read(path)
    if page is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such page in the Data Docs.")
    media = mimetypes.guess_type(path)[0] or "application/octet-stream"
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
    return Response(page, media_type=media, headers=headers)

"""Put the pages' application together."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request, Response

from sluice.errors import SluiceError
from sluice.pages.caller import token_check
from sluice.pages.doctor import router as doctor
from sluice.pages.jobs import router as jobs
from sluice.pages.overview import router as overview
from sluice.pages.quality import router as quality
from sluice.pages.response_cache import StillComputing, accepted, error_response
from sluice.pages.tables import router as tables
from sluice.pages.time import router as time
from sluice.pages.topics import router as topics
from sluice.pages.transactions import router as transactions

__all__ = ["create_app"]

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


def create_app(token: str = "") -> FastAPI:
    """Create the application; requests need the bearer token if there is one."""
    app = FastAPI(
        title="Sluice",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(SluiceError, _on_error)
    app.add_exception_handler(OSError, _on_error)
    app.add_exception_handler(StillComputing, _on_pending)
    app.add_api_route("/healthz", _healthy, methods=["GET"])
    check = [token_check(token)]
    for router in (overview, topics, tables, transactions, jobs, quality, time, doctor):
        app.include_router(router, dependencies=check)
    app.add_api_route("/{rest:path}", _not_found, methods=_METHODS, dependencies=check)
    return app


async def _healthy() -> dict[str, bool]:
    return {"ok": True}


async def _not_found() -> None:
    raise HTTPException(404)


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error)


async def _on_pending(request: Request, error: Exception) -> Response:
    return accepted()

"""Put the application together: every route authenticates first, unknown paths too."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from sluice.errors import SluiceError
from sluice.plugins.auth import require_viewer
from sluice.plugins.gateway import on_error
from sluice.plugins.gateway import router as gateway
from sluice.plugins.html_shell import PAGES, logged_out_html, page_html
from sluice.plugins.page_context import router as context
from sluice.plugins.security_headers import SecurityHeaders

__all__ = ["create_app"]

_STATIC = Path(__file__).parent / "static"
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


def create_app() -> FastAPI:
    """Create the application that Airflow mounts."""
    app = FastAPI(
        title="Sluice",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(require_viewer)],
    )
    app.add_middleware(SecurityHeaders)
    app.add_exception_handler(SluiceError, on_error)
    app.add_exception_handler(StarletteHTTPException, _on_forbidden)
    for page in PAGES:
        app.add_api_route(f"/{page.name}", _page(page_html(page)), methods=["GET"])
    app.add_api_route("/", _redirect_home, methods=["GET"])
    app.add_api_route("/static/{name}", _static, methods=["GET"])
    for router in (context, gateway):
        app.include_router(router, prefix="/api")
    app.add_api_route("/{rest:path}", _not_found, methods=_METHODS)
    return app


def _page(text: str) -> Any:
    async def page() -> HTMLResponse:
        return HTMLResponse(text)

    return page


async def _redirect_home() -> Response:
    return RedirectResponse(PAGES[0].name)


def _static(name: str, request: Request) -> Response:
    """Serve a file of the pages; there are no folders, so a name with a slash never comes here."""
    path = _STATIC / name
    if name.startswith(".") or not path.is_file():
        raise HTTPException(404)
    body = path.read_bytes()
    headers = {
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:24]}"',
        "Cache-Control": "private, no-cache",
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    media = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(name)[0]
    return Response(body, media_type=media or "application/octet-stream", headers=headers)


async def _not_found() -> None:
    raise HTTPException(404)


async def _on_forbidden(request: Request, error: Exception) -> Response:
    """Render 401 and 403 as a page for people who follow a link, as JSON for scripts."""
    assert isinstance(error, StarletteHTTPException)
    if error.status_code not in (401, 403) or "text/html" not in request.headers.get("accept", ""):
        return await http_exception_handler(request, error)
    title = "Please log in" if error.status_code == 401 else "Not for you"
    return HTMLResponse(logged_out_html(title, str(error.detail), "../"), error.status_code)

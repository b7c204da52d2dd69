"""Parse a request that changes something: one JSON object, from a page of this very site.

A form or a link on another site can send neither this content type, nor the header, nor this
origin, unless the browser asks first in a CORS preflight; no preflight is granted.
"""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from fastapi import Depends, HTTPException, Request, status

from sluice.plugins.auth import Viewer

__all__ = ["CSRF_HEADER", "ActionBody", "parse_action"]

CSRF_HEADER = "x-sluice"
"""The pages send it with every action; its value has no meaning."""
_MAX_BODY_BYTES = 64 * 1024


async def parse_action(request: Request, user: Viewer) -> dict[str, Any]:
    """Return the action that a page sent.

    The user is authenticated before any of the body is read. Raises HTTPException.
    """
    _check_origin(request)
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise HTTPException(
            status.HTTP_415_UNSUPPORTED_MEDIA_TYPE, "the body of an action must be JSON"
        )
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise HTTPException(
                status.HTTP_413_CONTENT_TOO_LARGE, f"An order has at most {_MAX_BODY_BYTES} bytes."
            )
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):  # 60,000 brackets are short, and deep
        document = None
    if not isinstance(document, dict):
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "An order is one JSON object.")
    return document


ActionBody = Annotated[dict[str, Any], Depends(parse_action)]
"""A route's parameter: what was ordered."""


def _check_origin(request: Request) -> None:
    refused = HTTPException(
        status.HTTP_403_FORBIDDEN, "This order does not come from Sluice's own pages."
    )
    if CSRF_HEADER not in request.headers:
        raise refused
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        raise refused
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() not in _our_names(request):
        raise refused
    if origin is None and site is None and "authorization" not in request.headers:
        raise refused  # no browser, and a cookie all the same


def _our_names(request: Request) -> set[str]:
    """Return host and port of Airflow, by its configuration and by this request's Host header."""
    named = urlsplit(conf.get("api", "base_url", fallback="") or "").netloc
    return {name.lower() for name in (named, request.headers.get("host", "")) if name}

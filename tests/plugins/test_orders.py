"""An order that is none is refused with a status, whatever was sent in its place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import HTTPException
from starlette.requests import Request

from sluice.plugins.action_body import CSRF_HEADER, parse_action


@pytest.mark.parametrize(
    "body", [b"[" * 60_000, b"{", b"[]", b"\xff"], ids=["brackets", "cut", "list", "no text"]
)
def test_a_body_that_is_no_object_is_422(body: bytes) -> None:
    headers = [
        (CSRF_HEADER.encode(), b"1"),
        (b"content-type", b"application/json"),
        (b"authorization", b"Bearer x"),
    ]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    user: Any = None
    with pytest.raises(HTTPException) as refused:
        asyncio.run(parse_action(Request(scope, receive), user))
    assert refused.value.status_code == 422

"""Cache what pages poll: computed once for all users, in threads of its own.

Twenty browsers cost no more than one. An answer stays valid for a time that grows with the time it
took to compute, and callers that come while it is being computed wait for the same one. If that
takes long, they get the previous answer with its age; if there is none, they get a 202, and the
page asks again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from sluice.errors import Signal
from sluice.etl.cached_value import CachedValue
from sluice.pages.protocol import error_document

__all__ = [
    "ResponseCache",
    "StillComputing",
    "accepted",
    "answer",
    "error_response",
    "exact_answer",
    "response_cache",
]

CACHE_TTL_S = 1.5
_WAIT_TIMEOUT_S = 0.5
"""Time that a caller waits for a new answer where there is an old one."""
_FIRST_WAIT_TIMEOUT_S = 0.8
"""Time that a caller waits where there is no old answer."""
_WORTH = 10
"""An answer stays valid for at least this many times its computing time."""
_STALE_TTL_S = 300.0
"""Older ones are not given any more."""
_MAX_EXACT_INTEGER = 2**53
Key = tuple[Hashable, ...]
_MAX_ENTRIES = 500
"""Answers kept."""


class StillComputing(Signal):
    """The answer is still being computed."""


class ResponseCache:
    """Cache answers by their request. Safe for threads and event loops."""

    def __init__(self, threads: int = 6) -> None:
        """Keep at most `threads` threads a pipeline: an unresponsive one delays no other."""
        self._max_threads = threads
        self._threads: dict[Hashable, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()
        self._entries: dict[Key, CachedValue[Any]] = {}

    async def get(
        self,
        key: Key,
        work: Callable[[], Any],
        fresh_s: float = CACHE_TTL_S,
        *,
        is_exact: bool = False,
    ) -> tuple[Any, float]:
        """Return what `work` returns, or returned a moment ago, and 0.

        If it takes long, an older answer and its age in seconds. `key`: the question, its pipeline,
        and what else it depends on. `is_exact`: none is older than `fresh_s`, however long it took.
        Raises what `work` raises, StillComputing.
        """
        cached = self._entry(key)
        state = cached.state
        ttl_s = max(fresh_s, _WORTH * state.took_s) - state.took_s  # it ages from when it was begun
        if is_exact:
            ttl_s = fresh_s
        state = cached.refresh(work, ttl_s if state.error is None else 0.0)
        future = state.running
        if future is None:
            return state.result(), 0.0
        age_s = time.monotonic() - state.computed_at_s
        is_shown = bool(state.updated_ms) and age_s <= _STALE_TTL_S and not is_exact
        try:
            waited = asyncio.shield(asyncio.wrap_future(future))
            return (
                await asyncio.wait_for(
                    waited, _WAIT_TIMEOUT_S if is_shown else _FIRST_WAIT_TIMEOUT_S
                ),
                0.0,
            )
        except TimeoutError:
            if future.done():  # the work itself timed out, or it ended just now
                return future.result(), 0.0
            if not is_shown:
                raise StillComputing from None
            return state.value, time.monotonic() - state.computed_at_s

    def forget(self) -> None:
        """Drop all answers after a change, also those that are being computed."""
        with self._lock:
            self._entries.clear()

    def _entry(self, key: Key) -> CachedValue[Any]:
        with self._lock:
            cached = self._entries.pop(key, None) or CachedValue(self._threads_for(key[1]).submit)
            self._entries[key] = cached  # the last one is the one that was asked for last
            while len(self._entries) > _MAX_ENTRIES:
                del self._entries[next(iter(self._entries))]
            return cached

    def _threads_for(self, pipeline: Hashable) -> ThreadPoolExecutor:
        if pipeline not in self._threads:
            self._threads[pipeline] = ThreadPoolExecutor(self._max_threads, "sluice-pages")
        return self._threads[pipeline]


response_cache = ResponseCache()


async def answer(
    request: Request,
    key: Key,
    work: Callable[[], Any],
    fresh_s: float = CACHE_TTL_S,
    *,
    keep: bool = True,
) -> Response:
    """Return the document that `work` makes, as JSON with an ETag.

    304 if the browser has it; 503 with what does not answer, and a hint. `keep`: whether the
    browser may keep it on disk.
    """
    return await _respond(request, response_cache.get(key, work, fresh_s), keep=keep)


async def exact_answer(request: Request, key: Key, work: Callable[[], Any]) -> Response:
    """Return the document that `work` makes now, as `answer`; no browser keeps it on disk.

    It is for what people look at again right after they changed something.
    """
    found = response_cache.get(key, work, CACHE_TTL_S, is_exact=True)
    return await _respond(request, found, keep=False)


async def _respond(
    request: Request, asked: Awaitable[tuple[Any, float]], *, keep: bool
) -> Response:
    try:
        document, age_s = await asked
    except StillComputing:
        return accepted()
    except Exception as error:
        return error_response(error)
    body = json.dumps(_for_browsers(document), ensure_ascii=False, default=str).encode()
    tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    headers = {
        "ETag": tag,
        "Cache-Control": "private, no-cache" if keep else "no-store",
        "X-Late-Ms": str(round(age_s * 1000)),
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def _for_browsers(value: Any) -> Any:
    """Turn whole numbers that a browser would round, such as a TSO, into texts."""
    if isinstance(value, dict):
        return {key: _for_browsers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_for_browsers(each) for each in value]
    if isinstance(value, int) and not -_MAX_EXACT_INTEGER < value < _MAX_EXACT_INTEGER:
        return str(value)
    return value


def accepted() -> JSONResponse:
    """Return 202: it takes longer than a page should wait for, and the page asks again."""
    return JSONResponse({"pending": True}, 202)


def error_response(error: Exception) -> JSONResponse:
    """Render an error for people: what happened, and the hint."""
    status, document = error_document(error)
    return JSONResponse(document, status)

"""What pages ask for again and again: worked out once for all who look, in threads of its own.

Twenty browsers cost no more than one: an answer counts for a moment, the longer the more work it was, and who asks
while it is being worked out waits for the same one. If that takes long, the one before is given, with its age; if there
is none, 202 says so, and the page asks again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from sluice.errors import Signal, SluiceError, ours

__all__ = ["ResponseCache", "StillComputing", "accepted", "answer", "error_response", "response_cache"]

CACHE_TTL_S = 1.5
_WAIT_TIMEOUT_S = 0.5
"""So long one waits for a new answer where there is an old one."""
_FIRST_WAIT_TIMEOUT_S = 0.8
"""So long where there is none."""
_WORTH = 10
"""So many times as long as it took to work it out, an answer counts at least."""
_STALE_TTL_S = 300.0
"""Older ones are not given any more."""
_MAX_EXACT_INTEGER = 2**53
Key = tuple[Hashable, ...]
_MAX_ENTRIES = 500
"""Answers kept."""


@dataclass(frozen=True, slots=True)
class _Entry:
    document: Any
    at: float
    took: float


class StillComputing(Signal):
    """There is no answer yet; it is being worked out."""


class ResponseCache:
    """Answers by what was asked. Safe for threads and event loops."""

    def __init__(self, threads: int = 6) -> None:
        """`threads`: so many for each pipeline: what doesn't answer to one keeps no other waiting."""
        self._max_threads = threads
        self._threads: dict[Hashable, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()
        self._entries: dict[Key, _Entry] = {}
        self._computing: dict[Hashable, Future[Any]] = {}
        self._changes = 0

    async def get(self, key: Key, work: Callable[[], Any], fresh_s: float = CACHE_TTL_S) -> tuple[Any, float]:
        """What `work` returns, or returned a moment ago; or an older answer and its age in seconds, if a new one takes
        long, else 0. `key`: what is asked, of which
        pipeline, and what else it depends on. Raises what `work` raises, LookingError.
        """
        kept, future = self._cached_or_started(key, work, fresh_s)
        if future is None:
            assert kept is not None
            return kept.document, 0.0
        try:
            waited = asyncio.shield(asyncio.wrap_future(future))
            return await asyncio.wait_for(waited, _WAIT_TIMEOUT_S if kept else _FIRST_WAIT_TIMEOUT_S), 0.0
        except TimeoutError:
            if future.done():  # it was the work that said so, or it was done just then
                return future.result(), 0.0
            if kept is None:
                raise StillComputing from None
            return kept.document, time.monotonic() - kept.at

    def forget(self) -> None:
        """Something was changed: what is asked next is worked out anew."""
        with self._lock:
            self._entries.clear()
            self._changes += 1

    def _cached_or_started(
        self, key: Key, work: Callable[[], Any], fresh_s: float
    ) -> tuple[_Entry | None, Future[Any] | None]:
        now = time.monotonic()
        with self._lock:
            kept = self._entries.get(key)
            if kept is not None and now - kept.at < max(fresh_s, _WORTH * kept.took):
                return kept, None
            if kept is not None and now - kept.at > _STALE_TTL_S:
                kept = None
            asked = (key, self._changes)
            future = self._computing.get(asked)
            if future is None:
                future = self._computing[asked] = self._threads_for(key).submit(self._work, asked, work)
            return kept, future

    def _threads_for(self, key: Key) -> ThreadPoolExecutor:
        pipeline = key[1]
        if pipeline not in self._threads:
            self._threads[pipeline] = ThreadPoolExecutor(self._max_threads, "sluice-pages")
        return self._threads[pipeline]

    def _work(self, asked: tuple[Key, int], work: Callable[[], Any]) -> Any:
        key, changes = asked
        begun = time.monotonic()
        try:
            document = work()
            with self._lock:
                if changes == self._changes:
                    self._entries.pop(key, None)
                    self._entries[key] = _Entry(document, begun, time.monotonic() - begun)
                    while len(self._entries) > _MAX_ENTRIES:
                        del self._entries[next(iter(self._entries))]
            return document
        finally:
            with self._lock:
                self._computing.pop(asked, None)


response_cache = ResponseCache()


async def answer(
    request: Request, key: Key, work: Callable[[], Any], fresh_s: float = CACHE_TTL_S, *, keep: bool = True
) -> Response:
    """The document that `work` makes, as JSON with an ETag; 304 if the browser has it; 503 that says what doesn't
    answer and what helps. `keep`: whether the browser may keep it on disk.
    """
    try:
        document, age_s = await response_cache.get(key, work, fresh_s)
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
    """The same with whole numbers that a browser would round, such as a TSO, as texts."""
    if isinstance(value, dict):
        return {key: _for_browsers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_for_browsers(each) for each in value]
    if isinstance(value, int) and not -_MAX_EXACT_INTEGER < value < _MAX_EXACT_INTEGER:
        return str(value)
    return value


def accepted() -> JSONResponse:
    """It takes longer than a page should wait for: the page asks again."""
    return JSONResponse({"looking": True}, 202)


def error_response(error: Exception) -> JSONResponse:
    """An error for people: what happened, and the way out."""
    reason: SluiceError = ours(error)
    message = str(reason.args[0]) if reason.args else type(reason).__name__
    document = {"error": message, "way_out": reason.way_out, "transient": reason.transient}
    return JSONResponse(document, 503 if reason.transient else 500 if reason.exit_code == 4 else 409)

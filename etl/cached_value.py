"""Compute values in the background: callers get the last one while a new one is on its way."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from sluice.errors import DefectError, Signal, ours

__all__ = ["CachedState", "CachedValue", "DependencyUnavailable", "PollResults", "SourcePoller"]

log = logging.getLogger("sluice")

T = TypeVar("T")
_WARN_AFTER_S = 3.0
"""Report a source as unresponsive after this long; until then it may still answer."""


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="cached-value", daemon=True).start()


@dataclass(frozen=True, slots=True)
class CachedState(Generic[T]):
    """The last value and the last error of a `CachedValue`.

    Moments are Unix ms, or `time.monotonic` if in seconds.
    """

    value: T | None = None
    updated_ms: int = 0
    """Unix ms at which `value` was computed; 0: never."""
    computed_at_s: float = 0.0
    """`time.monotonic` at which computing `value` began."""
    took_s: float = 0.0
    """How long computing `value` took."""
    error: Exception | None = None
    """Failure of the last computation, None if it succeeded."""
    failing_since_ms: int = 0
    """Start of the first of the failures in a row, 0 if there is none."""
    started_s: float = 0.0
    """Start of the last computation."""
    ended_s: float = float("-inf")
    running: Future[T] | None = None
    """The computation under way."""

    def result(self) -> T | None:
        """Return the value, None if there is none yet. Raises the last computation's error."""
        if self.error is not None:
            raise self.error
        return self.value


class CachedValue(Generic[T]):
    """A value that is computed in the background.

    One computation runs at a time, so one that never ends costs one thread, however many callers
    there are. Threads may share it.
    """

    def __init__(self, start: Callable[[Callable[[], None]], object] = _start_thread) -> None:
        """Begin without a value; `start` runs a function in another thread.

        A daemon thread of its own unless a pool's is given.
        """
        self._start = start
        self._lock = threading.Lock()
        self._state: CachedState[T] = CachedState()

    @property
    def state(self) -> CachedState[T]:
        return self._state

    def refresh(self, compute: Callable[[], T], ttl_s: float = 0.0) -> CachedState[T]:
        """Start a computation unless one is running, or the last one ended less than `ttl_s` ago.

        Doesn't wait.
        """
        with self._lock:
            now = time.monotonic()
            if self._state.running is None and now - self._state.ended_s >= ttl_s:
                future: Future[T] = Future()
                self._start(partial(self._run, compute, future))
                self._state = replace(self._state, running=future, started_s=now)
            return self._state

    def wait(self, timeout_s: float) -> CachedState[T]:
        """Wait until the running computation ends, or `timeout_s` after its start.

        Several waits share one budget.
        """
        state = self._state
        if state.running is not None:
            left_s = state.started_s + timeout_s - time.monotonic()
            concurrent.futures.wait([state.running], max(0.0, left_s))
        return self._state

    def latest(self, compute: Callable[[], T], ttl_s: float, first_wait_s: float) -> T | None:
        """Return the last value, refreshed in the background if it is older than `ttl_s`.

        Callers wait up to `first_wait_s` for the first one; None if it takes longer. Raises the
        last computation's error.
        """
        state = self.refresh(compute, ttl_s)
        if not state.updated_ms and state.error is None:
            state = self.wait(first_wait_s)
        return state.result()

    def _run(self, compute: Callable[[], T], future: Future[T]) -> None:
        with self._lock:  # it may have waited for a thread of the pool
            self._state = replace(self._state, started_s=time.monotonic())
            started_s, started_ms = self._state.started_s, _now_ms()
        try:
            value = compute()
        except Exception as error:
            _log_defect(error)
            since_ms = (
                0 if isinstance(error, Signal) else self._state.failing_since_ms or started_ms
            )
            self._end(error=error, failing_since_ms=since_ms)
            future.set_exception(error)
        else:
            took_s = time.monotonic() - started_s
            self._end(
                value=value,
                updated_ms=_now_ms(),
                computed_at_s=started_s,
                took_s=took_s,
                error=None,
                failing_since_ms=0,
            )
            future.set_result(value)

    def _end(self, **changes: Any) -> None:
        with self._lock:
            self._state = replace(self._state, running=None, ended_s=time.monotonic(), **changes)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _log_defect(error: Exception) -> None:
    if not isinstance(error, Signal) and isinstance(told := ours(error), DefectError):
        log.error("part of what was asked for is missing: %s", told, exc_info=error)


class DependencyUnavailable(Signal):
    """A source can't be polled because another one that it depends on hasn't answered."""


@dataclass(slots=True)
class PollResults:
    """Last values by source, and why sources don't answer. Moments are Unix ms."""

    values: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    unresponsive_since_ms: dict[str, int] = field(default_factory=dict)
    """Unix ms from which each source in `errors` has not answered."""
    updated_ms: dict[str, int] = field(default_factory=dict)
    """Unix ms at which each source in `values` was updated."""
    unknown: set[str] = field(default_factory=set)
    """Sources in `errors`, those that couldn't be polled, and those without a value yet."""


class SourcePoller:
    """Sources by name, polled side by side within one time budget, each in one thread at a time.

    Threads may share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[str, CachedValue[Any]] = {}

    def poll(self, queries: Mapping[str, Callable[[], Any]], timeout_s: float) -> PollResults:
        """Run all queries at once and return the last values.

        A source that takes longer than `timeout_s` goes on in the background: until it ends it is
        neither polled again nor waited for.
        """
        for name, query in queries.items():
            self._source(name).refresh(query)
        results = PollResults()
        for name in queries:
            _fill(results, name, self._source(name).wait(timeout_s))
        return results

    def latest(self, name: str, timeout_s: float) -> Any:
        """Return the value of a source that is being polled, or its last one.

        Raises DependencyUnavailable.
        """
        state = self._source(name).wait(timeout_s)
        if not state.updated_ms:
            raise DependencyUnavailable(f"{name} has not answered")
        return state.value

    def _source(self, name: str) -> CachedValue[Any]:
        with self._lock:
            return self._sources.setdefault(name, CachedValue())


def _fill(results: PollResults, name: str, state: CachedState[Any]) -> None:
    is_blocked = isinstance(state.error, DependencyUnavailable)
    error = "" if state.error is None or is_blocked else str(ours(state.error))
    waited_s = time.monotonic() - state.started_s if state.running is not None else 0.0
    if not error and waited_s >= _WARN_AFTER_S:
        error = f"no answer within {waited_s:.0f} s"
    if state.updated_ms:
        results.values[name], results.updated_ms[name] = state.value, state.updated_ms
    if error:
        results.errors[name] = error
        results.unresponsive_since_ms[name] = state.failing_since_ms or _now_ms() - round(
            waited_s * 1000
        )
    if error or is_blocked or not state.updated_ms:
        results.unknown.add(name)

"""A batch: windows that are applied together, whose steps come from the thread that has them prepared."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from errors import Signal
from etl.apply._applied_log import AppliedLog
from etl.steps import ChangeError, Step
from relay import Decision, Window

END = object()
"""Comes behind the last steps of a batch."""


class StoppedError(Signal):
    """What was being waited for is wanted no longer."""


class DecidedAnewError(Signal):
    """Operators decided about a commit of a batch after it was prepared: it has to be prepared again."""


class HeldError(Signal):
    """Operators want applying to wait, or to end before what was to come next."""


class Queue:
    """Items between two threads, at most about `limit` bytes of them; a single larger one passes alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        self._used = 0
        self._room = threading.Condition()
        self._closed = False

    def put(self, item: Any, size: int = 0) -> None:
        """Waits for room. Raises StoppedError once closed."""
        with self._room:
            while self._used and self._used + size > self._limit and not self._closed:
                self._room.wait()
            if self._closed:
                raise StoppedError
            self._used += size
        self._items.put((item, size))

    def get(self, timeout_s: float) -> Any:
        """Raises queue.Empty."""
        item, size = self._items.get(timeout=timeout_s)
        with self._room:
            self._used -= size
            self._room.notify()
        return item

    def close(self) -> None:
        with self._room:
            self._closed = True
            self._room.notify_all()


@dataclass(slots=True)
class Batch:
    """Windows that are applied together. `waited_s` and `prepare_s` are known once `steps` is through."""

    windows: tuple[Window, ...]
    after_ts: int
    hi: int
    waited_s: float = 0.0
    prepare_s: float = 0.0
    decisions: tuple[Decision, ...] = ()
    """Of operators, about commits inside; known once `steps` is through."""
    mended: frozenset[int] = frozenset()
    """Ids of tables of which rows may be missing, see `relay.appointments`."""
    _queue: Queue | None = field(default=None, repr=False)
    _relay: AppliedLog | None = field(default=None, repr=False)

    def steps(self, stop: threading.Event) -> Iterator[Step]:
        """The prepared steps as they come. Raises what preparing them raised, StoppedError when `stop` is set while
        nothing comes, and ChangeError when they are not all there.
        """
        last: Step | None = None
        for steps in self._lists(stop):
            for step in steps:
                last = step
                yield step
        if last is None or last.commit_ts != self.hi or last.kind != "commit":
            raise ChangeError(
                f"the steps prepared for ({self.after_ts}, {self.hi}] end without the commit at {self.hi}: the batch is"
                " incomplete"
            )

    def confirm(self, step: Step, *, begun: bool = False) -> None:
        """See `etl.sinks.sink.Confirm`. Raises DecidedAnewError and HeldError."""
        assert self._relay is not None
        if decided_about(self._relay, self) != self.decisions:
            raise DecidedAnewError
        if not begun:
            check_not_held(self._relay, step.commit_ts)

    def _lists(self, stop: threading.Event) -> Iterator[list[Step]]:
        assert self._queue is not None
        while True:
            started = time.perf_counter()
            try:
                item = self._queue.get(0.1)
            except queue.Empty:
                if stop.is_set():
                    raise StoppedError from None
                continue
            finally:
                self.waited_s += time.perf_counter() - started
            if item is END:
                return
            if isinstance(item, BaseException):
                raise item
            yield item


def check_not_held(relay: AppliedLog, commit_ts: int) -> None:
    """Raises HeldError while operators don't let applying come to a commit timestamp."""
    control = relay.control()
    if control.apply_paused or (control.apply_until_ts is not None and control.apply_until_ts < commit_ts):
        raise HeldError(f"applying waits before commit_ts {commit_ts}, as operators want it")


def decided_about(relay: AppliedLog, batch: Batch) -> tuple[Decision, ...]:
    """What operators have decided by now about commits of a batch."""
    return tuple(relay.decisions.list(batch.after_ts, batch.hi))

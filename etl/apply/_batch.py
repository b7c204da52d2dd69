"""A batch: windows that are applied together, whose steps come from the thread that has them prepared."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import Signal
from sluice.etl.apply._log_protocol import ApplyLog
from sluice.etl.changes.steps import ChangeError, Step
from sluice.relay import Override, WindowRecord

END_OF_BATCH = object()
"""Comes behind the last steps of a batch."""


class WaitStopped(Signal):
    """What was being waited for is wanted no longer."""


class OverridesChanged(Signal):
    """Operators decided about a commit of a batch after it was prepared: it has to be prepared again."""


class PausedByOperator(Signal):
    """Operators want applying to wait, or to end before what was to come next."""


class ByteBoundedQueue:
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
                raise WaitStopped
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
class WindowBatch:
    """Windows that are applied together. `waited_s` and `prepare_s` are known once `steps` is through."""

    windows: tuple[WindowRecord, ...]
    after_ts: int
    hi: int
    waited_s: float = 0.0
    prepare_s: float = 0.0
    decisions: tuple[Override, ...] = ()
    """Of operators, about commits inside; known once `steps` is through."""
    mended: frozenset[int] = frozenset()
    """Ids of tables of which rows may be missing, see `sluice.relay.aligned_chunks`."""
    _queue: ByteBoundedQueue | None = field(default=None, repr=False)
    _relay: ApplyLog | None = field(default=None, repr=False)

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
        """See `sluice.etl.downstream.sinks.sink.BeforeCommit`. Raises DecidedAnewError and HeldError."""
        assert self._relay is not None
        if overrides_for(self._relay, self) != self.decisions:
            raise OverridesChanged
        if not begun:
            check_not_paused(self._relay, step.commit_ts)

    def _lists(self, stop: threading.Event) -> Iterator[list[Step]]:
        assert self._queue is not None
        while True:
            started = time.perf_counter()
            try:
                item = self._queue.get(0.1)
            except queue.Empty:
                if stop.is_set():
                    raise WaitStopped from None
                continue
            finally:
                self.waited_s += time.perf_counter() - started
            if item is END_OF_BATCH:
                return
            if isinstance(item, BaseException):
                raise item
            yield item


def check_not_paused(relay: ApplyLog, commit_ts: int) -> None:
    """Raises HeldError while operators don't let applying come to a commit timestamp."""
    control = relay.control()
    if control.apply_paused or (control.apply_until_ts is not None and control.apply_until_ts < commit_ts):
        raise PausedByOperator(f"applying waits before commit_ts {commit_ts}, as operators want it")


def overrides_for(relay: ApplyLog, batch: WindowBatch) -> tuple[Override, ...]:
    """What operators have decided by now about commits of a batch."""
    return tuple(relay.decisions.list(batch.after_ts, batch.hi))

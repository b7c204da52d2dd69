"""Hold a batch: windows that are applied together, and their steps from the prefetcher's thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from sluice.errors import Signal
from sluice.etl.changes.planning import LostChange
from sluice.etl.changes.steps import ChangeError, Step
from sluice.relay import AlignedChunks, Control, Override, Overrides, WindowRecord

END_OF_BATCH = object()
"""Follows the last steps of a batch in its queue."""


class WaitStopped(Signal):
    """The run ended while a thread was waiting."""


class OverridesChanged(Signal):
    """Overrides for a batch changed after it was prepared: it has to be prepared again."""


class PausedByOperator(Signal):
    """An operator paused applying, or set an end before the next commit."""


class ApplyLog(Protocol):
    """A log of windows (`relay.WindowLog`), with the orders for applying (`relay.RelayLog`)."""

    @property
    def url(self) -> str: ...

    @property
    def aligned_chunks(self) -> AlignedChunks: ...

    @property
    def overrides(self) -> Overrides: ...

    def next(self, lo: int) -> WindowRecord | None: ...

    def find(self, ts: int) -> WindowRecord | None: ...

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[WindowRecord]: ...

    def control(self) -> Control: ...


class ByteBoundedQueue:
    """Pass items between two threads, about `limit` bytes at most; a larger item passes alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        self._used = 0
        self._room = threading.Condition()
        self._closed = False

    def put(self, item: Any, size: int = 0) -> None:
        """Add an item as soon as it fits. Raises WaitStopped once the queue is closed."""
        with self._room:
            while self._used and self._used + size > self._limit and not self._closed:
                self._room.wait()
            if self._closed:
                raise WaitStopped
            self._used += size
        self._items.put((item, size))

    def get(self, timeout_s: float) -> Any:
        """Return the next item. Raises queue.Empty if none comes for `timeout_s`."""
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
    """Windows that are applied together. `idle_s` and `prepare_s` are final after the last step."""

    windows: tuple[WindowRecord, ...]
    after_ts: int
    hi: int
    idle_s: float = 0.0
    prepare_s: float = 0.0
    overrides: tuple[Override, ...] = ()
    """The overrides for its commits by which it was prepared; set before the first step comes."""
    lost: tuple[LostChange, ...] | None = None
    """What it was prepared without, as it lost conflicts; None where that isn't decided."""
    tables_under_repair: frozenset[int] = frozenset()
    """Ids of tables under repair: rows of them may be missing (`sluice.relay.aligned_chunks`)."""
    _queue: ByteBoundedQueue | None = field(default=None, repr=False)
    _relay: ApplyLog | None = field(default=None, repr=False)

    def steps(self, stop: threading.Event) -> Iterator[Step]:
        """Yield the prepared steps as they come.

        Raises what preparing them raised, WaitStopped if `stop` is set while none comes, and
        ChangeError if they end before the batch's last commit.
        """
        last: Step | None = None
        for steps in self._lists(stop):
            for step in steps:
                last = step
                yield step
        if last is None or last.commit_ts != self.hi or last.kind != "commit":
            raise ChangeError(
                f"the steps prepared for ({self.after_ts}, {self.hi}] end without the commit at"
                f" {self.hi}: the batch is incomplete"
            )

    def confirm(self, step: Step, *, begun: bool = False) -> None:
        """Check that a step may be committed (`sluice.etl.downstream.sinks.sink.BeforeCommit`).

        Raises OverridesChanged and PausedByOperator.
        """
        assert self._relay is not None
        if overrides_for(self._relay, self) != self.overrides:
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
                self.idle_s += time.perf_counter() - started
            if item is END_OF_BATCH:
                return
            if isinstance(item, BaseException):
                raise item
            yield item


def check_not_paused(relay: ApplyLog, commit_ts: int) -> None:
    """Raise PausedByOperator if applying is paused, or is to end before `commit_ts`."""
    control = relay.control()
    if control.apply_paused or (
        control.apply_until_ts is not None and control.apply_until_ts < commit_ts
    ):
        raise PausedByOperator(f"applying is paused by an operator before commit_ts {commit_ts}")


def overrides_for(relay: ApplyLog, batch: WindowBatch) -> tuple[Override, ...]:
    """Return the present overrides for commits of a batch."""
    return tuple(relay.overrides.list(batch.after_ts, batch.hi))

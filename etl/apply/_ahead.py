"""Takes landed windows together and has them prepared, one batch ahead of the writer."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from errors import Signal
from etl.downstream import Flight
from etl.prepare import began_before, counting_from, describe_window
from etl.rules import put_into
from etl.settings import Apply
from etl.steps import ChangeError, Step, from_batches, to_batches
from relay import Decision, RelayGapError, RelayLog, Window

log = logging.getLogger("sluice.apply")

Prepare = Callable[[Sequence[Mapping[str, Any]]], Iterator[pa.RecordBatch]]
"""Windows as `describe_window` gives them to record batches in STEP_SCHEMA."""

_POLL_S = 0.02
_CONTROL_INTERVAL_S = 0.2
_WAITING_BYTES = 64 * 2**20
_END = object()
_NO_END = 2**63 - 1


class StoppedError(Signal):
    """What was being waited for is wanted no longer."""


class DecidedAnewError(Signal):
    """Operators decided about a commit of a batch after it was prepared: it has to be prepared again."""


class HeldError(Signal):
    """Operators want applying to wait, or to end before what was to come next."""


class _Queue:
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
    _queue: _Queue | None = field(default=None, repr=False)
    _relay: RelayLog | None = field(default=None, repr=False)

    def steps(self, stop: threading.Event) -> Iterator[Step]:
        """The prepared steps as they come. Raises what preparing them raised, StoppedError when `stop` is set while
        nothing comes, and ChangeError when they are not all there.
        """
        last: Step | None = None
        for step in from_batches(self._record_batches(stop)):
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
        if begun:
            return
        control = self._relay.control()
        if control.apply_paused or (control.apply_until_ts is not None and control.apply_until_ts < step.commit_ts):
            raise HeldError(f"applying waits before commit_ts {step.commit_ts}, as operators want it")

    def _record_batches(self, stop: threading.Event) -> Iterator[pa.RecordBatch]:
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
            if item is _END:
                return
            if isinstance(item, BaseException):
                raise item
            yield item


def decided_about(relay: RelayLog, batch: Batch) -> tuple[Decision, ...]:
    """What operators have decided by now about commits of a batch."""
    return tuple(relay.decisions.list(batch.after_ts, batch.hi))


class Ahead:
    """A thread that has the windows after `after_ts` prepared. What it prepares waits in memory, bounded by bytes.

    `flight`: what was begun before; the first batch must end where it does, whatever the limits and operators say.
    `safe_until`: batches that begin before this TSO are prepared for safe mode.
    """

    def __init__(
        self,
        relay: RelayLog,
        prepare: Prepare,
        limits: Apply,
        after_ts: int,
        flight: Flight | None = None,
        safe_until: int = 0,
        until_ts: int | None = None,
    ) -> None:
        self._relay = relay
        self._until_ts = until_ts
        self._prepare = prepare
        self._limits = limits
        self._after_ts = after_ts
        self._safe_until = safe_until
        self._flight = flight
        self._first_hi = flight.until if flight else None
        self._room = threading.Semaphore(1)
        self._queue = _Queue(_WAITING_BYTES)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sluice-prepare", daemon=True)
        self._thread.start()

    def batches(self, over: Callable[[], bool]) -> Iterator[Batch]:
        """Batches in order, until `over`; each one's steps are to be used up before the next."""
        while not over():
            started = time.perf_counter()
            try:
                item = self._queue.get(0.1)
            except queue.Empty:
                continue
            self._room.release()
            if isinstance(item, BaseException):
                raise item
            item.waited_s += time.perf_counter() - started
            yield item

    def stop(self) -> None:
        """End the thread; a job that is running is waited for, up to a limit, then left alone: it writes nothing."""
        self._stopped.set()
        self._queue.close()
        self._room.release()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            position = self._after_ts
            while True:
                self._room.acquire()
                windows = self._next(position)
                if not windows:
                    return
                hi = min(windows[-1].hi, self._end())
                self._first_hi = None
                batch = Batch(tuple(windows), position, hi, _queue=self._queue, _relay=self._relay)
                self._queue.put(batch)
                with contextlib.closing(self._steps(batch)) as prepared:
                    while True:
                        started = time.perf_counter()
                        steps = next(prepared, None)
                        batch.prepare_s += time.perf_counter() - started
                        if steps is None:
                            break
                        self._queue.put(steps, steps.nbytes)
                self._queue.put(_END)
                position = hi
        except StoppedError:
            return
        except BaseException as error:
            with contextlib.suppress(StoppedError):
                self._queue.put(error)

    def _steps(self, batch: Batch) -> Generator[pa.RecordBatch, None, None]:
        windows = batch.windows
        batch.decisions = decided_about(self._relay, batch)
        if any(window.changes or window.ddls for window in windows):
            safe = batch.after_ts < self._safe_until
            flight = self._flight if self._flight is not None and batch.after_ts < self._flight.until else None
            before = self._counted_before(windows[0], batch.after_ts)
            described = [
                describe_window(w, batch.after_ts, batch.hi, safe, flight, self._behind(w, batch.after_ts))
                for w in windows
            ]
            described[0]["counted_before"] = before
            yield from self._prepare(put_into(described, batch.decisions))
        else:
            yield from to_batches(
                iter([Step("commit", batch.hi, detail={"schema_version": windows[-1].schema_version})])
            )

    def _behind(self, window: Window, after_ts: int) -> dict[int, list[Window]]:
        """For DDL that began before its window, by commit_ts: the windows between. Older ones may be gone, and then
        hold nothing of it.
        """
        began = began_before(window, after_ts)
        return {
            commit_ts: [w for w in self._relay.windows(ts, window.lo) if w.lo < window.lo]
            for commit_ts, ts in began.items()
        }

    def _counted_before(self, window: Window, after_ts: int) -> list[dict[str, Any]]:
        """What `prepare` has to count anew, see `counting_from`: the windows between such a DDL and `after_ts`, each
        with the DDL's job.
        """
        found = []
        for job_id, began_ts in counting_from(window, after_ts).items():
            windows = [w for w in self._relay.windows(began_ts, after_ts) if w.lo < after_ts]
            at = next(
                (
                    (i, int(ddl["commit_ts"]))
                    for i, w in enumerate(windows)
                    for ddl in w.ddls
                    if ddl.get("job_id") == job_id
                ),
                None,
            )
            if at is not None:
                parts = [part.to_dict() for w in windows[at[0] :] for part in w.parts]
                found.append({"job_id": job_id, "after_ts": at[1], "parts": parts})
        return found

    def _next(self, position: int) -> list[Window]:
        """The windows after `position` that are landed, as many as go together; waits for the first, and for operators.
        [] when stopped."""
        while (first := self._find(position) if self._may_go_on(position) else None) is None:
            if self._stopped.wait(_POLL_S):
                return []
        windows = [first]
        rows, size = first.changes, sum(part.bytes for part in first.parts)
        while not self._stopped.is_set() and windows[-1].hi < self._end():
            following = self._relay.next(windows[-1].hi)
            if following is None and self._first_hi is not None:  # a flight is written again as a whole
                self._wait_for_flight(windows[-1].hi)
                continue
            if following is None:
                break
            rows += following.changes
            size += sum(part.bytes for part in following.parts)
            if self._first_hi is None and (rows > self._limits.max_rows or size > self._limits.max_bytes):
                break
            windows.append(following)
        return windows if not self._stopped.is_set() else []

    def _wait_for_flight(self, position: int) -> None:
        if not self._waiting_said:
            log.warning(
                "changes through %s were begun; waiting until they are landed again, which they are through %s",
                self._first_hi,
                position,
            )
            self._waiting_said = True
        self._stopped.wait(_POLL_S)

    def _find(self, position: int) -> Window | None:
        window = self._relay.next(position)
        if window is not None or self._settled(position):
            return window
        window = self._relay.find(position)
        if window is not None and window.lo > position:
            raise RelayGapError(
                f"{self._relay.url}: the checkpoint is at {position}, but the next landed window begins at {window.lo}:"
                " what lies between was removed or never landed; land it again, or copy the downstream anew as of a"
                " later time and set its checkpoint"
            )
        self._at_boundary = position if window is None else -1
        return window

    def _may_go_on(self, position: int) -> bool:
        """Whether operators let applying go beyond `position`; what they said is read again now and then."""
        now = time.monotonic()
        if now >= self._control_due:
            self._control_due = now + _CONTROL_INTERVAL_S
            control = self._relay.control()
            until = min((ts for ts in (control.apply_until_ts, self._until_ts) if ts is not None), default=None)
            if (control.apply_paused, until) != (self._paused, self._until):
                log.info(
                    "applying %s",
                    "is paused" if control.apply_paused else "goes on" if until is None else f"goes through {until}",
                )
            self._paused, self._until = control.apply_paused, until
        return not self._paused and position < self._end()

    def _end(self) -> int:
        """Where the next batch ends at the latest (TSO)."""
        if self._first_hi is not None:
            return self._first_hi
        return _NO_END if self._until is None else self._until

    _waiting_said = False
    _control_due = 0.0
    _paused = False
    _until: int | None = None
    _at_boundary = -1

    def _settled(self, position: int) -> bool:
        """Whether `position` is known to be the end of the chain, so that the next window must begin there: O(1) by
        name.
        """
        return self._at_boundary == position

"""Takes landed windows together and has them prepared, one batch ahead of the writer."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from etl.apply._batch import END, Batch, Queue, StoppedError, decided_about
from etl.apply._next_windows import NextWindows
from etl.downstream import Checkpoint
from etl.prepare import began_before, counting_from, describe_window
from etl.rules import put_into
from etl.settings import Apply
from etl.steps import Step, to_batches
from relay import RelayLog, Window

Prepare = Callable[[Sequence[Mapping[str, Any]]], Iterator[pa.RecordBatch]]
"""Windows as `describe_window` gives them to record batches in STEP_SCHEMA."""

_WAITING_BYTES = 64 * 2**20


class Ahead:
    """A thread that has the windows after a checkpoint prepared. What it prepares waits in memory, bounded by bytes."""

    def __init__(
        self, relay: RelayLog, prepare: Prepare, limits: Apply, checkpoint: Checkpoint, until_ts: int | None = None
    ) -> None:
        """The flight of `checkpoint` is the first batch; batches that begin before its `safe_until` are prepared for
        safe mode. `until_ts`: nothing after this TSO.
        """
        self._relay = relay
        self._prepare = prepare
        self._checkpoint = checkpoint
        self._room = threading.Semaphore(1)
        self._queue = Queue(_WAITING_BYTES)
        self._stopped = threading.Event()
        self._next = NextWindows(relay, limits, checkpoint.flight, until_ts, self._stopped)
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
            position = self._checkpoint.commit_ts
            while True:
                self._room.acquire()
                windows, hi = self._next.after(position)
                if not windows:
                    return
                batch = Batch(windows, position, hi, _queue=self._queue, _relay=self._relay)
                self._queue.put(batch)
                with contextlib.closing(self._steps(batch)) as prepared:
                    while True:
                        started = time.perf_counter()
                        steps = next(prepared, None)
                        batch.prepare_s += time.perf_counter() - started
                        if steps is None:
                            break
                        self._queue.put(steps, steps.nbytes)
                self._queue.put(END)
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
            safe, flight = batch.after_ts < self._checkpoint.safe_until, self._checkpoint.flight
            if flight is not None and batch.after_ts >= flight.until:
                flight = None
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

"""Share state between all lane connections of a process: access to the store, memory limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from threading import get_ident
from typing import NamedTuple
from weakref import WeakKeyDictionary

from sluice.pump_service.grpc_fastpath.allowance import (
    PausedReads,
    SharedFrameBudget,
    StrangersShare,
)
from sluice.pump_service.grpc_fastpath.frames import CANCEL
from sluice.pump_service.grpc_fastpath.limits import FastPathLimits
from sluice.pump_service.grpc_fastpath.places import MAX_CONNECTIONS, ConnectionSlots
from sluice.pump_service.grpc_fastpath.roles import ClientCalls, RecordIngest, RpcDispatch
from sluice.pump_service.grpc_fastpath.uploads import PartialRequestBudget
from sluice.pump_service.store import Record, RefusedRecordsError
from sluice.tidb.binlog_kinds import PREWRITE

_log = logging.getLogger(__name__)


_MAX_SMALL_BATCH_BYTES = 64 << 10
_ALONE_AFTER_CALLS = 16
"""A caller counts as the only one after this many calls in a row that found no other waiting."""
_MAX_INLINE_CALLS = 256
"""How many calls of an only caller the reader thread writes to disk itself.

While it writes it can't see other callers wait, so it looks again after these.
"""
_CALM_READS, _CALM_READ_GAP_S, _CALM_MAX_CALLS = 16, 0.002, 4
"""Traffic is calm after `_CALM_READS` reads in a row, on average `_CALM_READ_GAP_S` apart or more.

Each has at most `_CALM_MAX_CALLS` calls. In calm traffic the reader thread writes to disk itself:
callers hardly ever have to wait for it, and no other thread need be woken.
"""
_CALM_GAP_PER_WRITE_RATIO = 4
"""In calm traffic reads are also apart by this multiple of the time that a write takes lately.

So the reader thread spends most of its time on something else than the disk.
"""
_MAX_ANSWER_DELAY_S = 0.03
"""How long a Commit or Rollback may wait in calm traffic for the next Prewrite, to share its sync.

No session of TiDB waits for either. A reader that needs the record earlier has it written at once.
"""
_MAINTENANCE_INTERVAL_S = 5.0
"""How often idle connections and stalled uploads are looked for."""
_CLOSED_PER_TURN = 64
_HOLDS_PER_PROOF_BATCHES = 4
"""How many batches are held back after a client proves that it doesn't wait for a Commit's answer.

The proof: it sent something while a Commit of its own was held back.
"""
_TRIAL_INTERVAL_S = 1.0
"""How often, at most, one batch of a client without such a proof is held back."""


class _ClientPattern:
    """Track whether a client waits for the answers to its Commits, as far as it has shown."""

    __slots__ = ("held", "left", "try_at")

    def __init__(self) -> None:
        self.held = 0  # batches of calls
        self.left = 0  # batches that may still be held back
        self.try_at = 0.0


class _CallBatch(NamedTuple):
    lane: ClientCalls
    streams: list[int]
    size: int
    began: float
    later: _ClientPattern | None


class FastPathServer:
    """Submit batches of calls to the store and deliver its verdicts to connections.

    Verdicts are delivered in the loop's thread. `bridge` answers a call that isn't WriteBinlog.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ingest: RecordIngest,
        limits: FastPathLimits,
        bridge: RpcDispatch,
        descriptors: int = MAX_CONNECTIONS,
    ) -> None:
        """Create the fast path server; `descriptors`: how many connections may hold."""
        self.loop = loop
        self.ingest = ingest
        self.limits = limits
        self.bridge = bridge
        self.lanes: set[ClientCalls] = set()
        self.places = ConnectionSlots(descriptors, limits.held)
        self.uploads = PartialRequestBudget(limits.partial, limits.share, self.places.has_room)
        self.idle_frames = SharedFrameBudget(limits.idle_frames)
        self.strangers = StrangersShare(loop.time)
        self.paused_reads = PausedReads(loop, self.strangers)
        self.calls = 0  # others than WriteBinlog, until their tasks have ended
        self.queued = 0  # payload bytes that the store has and has not made durable
        self._finished: deque[tuple[_CallBatch, BaseException | None]] = deque()
        self._woken = False
        self._thread = 0  # the loop's
        self._alone = 0  # calls in a row that found nothing else waiting
        # when there was something to write
        self._read_times = deque([time.monotonic()] * _CALM_READS, _CALM_READS)
        self._last_batch_s = 0.0  # s that a write from here took lately
        self._later = 0  # payload bytes of `queued` that may wait for others
        self._later_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._patterns: WeakKeyDictionary[ClientCalls, _ClientPattern] = WeakKeyDictionary()
        self._full = False

    def submit(self, lane: ClientCalls, records: list[Record], streams: list[int]) -> None:
        """Give a connection's calls to the store; `lane.answer` follows when they are durable."""
        size = 256 * len(records)
        for record in records:
            size += len(record.payload)
        began = time.monotonic()
        is_calm = self._is_calm(len(records), size, began)
        here = is_calm or self._is_alone(len(records), size)
        habit = self._pattern(lane, records, began) if is_calm else None
        self._thread = get_ident()
        self.queued += size
        if habit is not None:
            self._hold_back(habit, size, began)
        batch = _CallBatch(lane, streams, size, began, habit)
        later = habit is not None
        try:
            self.ingest.submit(
                records, partial(self._durable, batch), lane.origin, here=here, later=later
            )
        except Exception as error:  # the store is closed or broken: the calls get its error
            self._durable(batch, error)
        if self._finished:  # written from within
            self._answer()
            self._last_batch_s = max(self._last_batch_s, time.monotonic() - began)
        if habit is not None and habit.held:
            habit.left = max(habit.left - 1, 0)
            habit.try_at = began + _TRIAL_INTERVAL_S
        if self.queued > self.limits.queued and not self._full:
            self._full = True
            for other in self.lanes:
                other.set_read_paused(on=True)

    def _is_calm(self, calls: int, size: int, now: float) -> bool:
        """Return whether traffic is so low that no caller would wait while this thread writes."""
        self._last_batch_s *= 0.95
        apart_s = max(_CALM_READ_GAP_S, _CALM_GAP_PER_WRITE_RATIO * self._last_batch_s)
        is_calm = now - self._read_times[0] >= _CALM_READS * apart_s
        self._read_times.append(now)
        return (
            is_calm
            and calls <= _CALM_MAX_CALLS
            and size <= _MAX_SMALL_BATCH_BYTES
            and self.queued == self._later
        )

    def _is_alone(self, calls: int, size: int) -> bool:
        """Return whether a single caller seems to be the only one.

        If so, no other caller would wait while this thread writes.
        """
        sole = (
            self.queued == 0
            and calls == 1
            and size <= _MAX_SMALL_BATCH_BYTES
            and self._alone < _ALONE_AFTER_CALLS + _MAX_INLINE_CALLS
        )
        self._alone = self._alone + 1 if sole else 0
        return self._alone > _ALONE_AFTER_CALLS

    def _pattern(
        self, lane: ClientCalls, records: list[Record], now: float
    ) -> _ClientPattern | None:
        """Return the client's pattern, if these calls' answers may come later."""
        habit = self._patterns.get(lane)
        if habit is None:
            habit = self._patterns[lane] = _ClientPattern()
        elif habit.held:
            habit.left = _HOLDS_PER_PROOF_BATCHES
        if (habit.left or now >= habit.try_at) and all(tp != PREWRITE for tp, _, _, _ in records):
            return habit
        return None

    def _hold_back(self, habit: _ClientPattern, size: int, now: float) -> None:
        habit.held += 1
        if not self._later:
            self._later_since = now
        self._later += size
        if self._timer is None:
            self._timer = self.loop.call_later(_MAX_ANSWER_DELAY_S, self._flush)

    def _flush(self) -> None:
        """Write the calls held back: no Prewrite came in time to be written with them."""
        self._timer = None
        if not self._later:
            return
        left_s = self._later_since + _MAX_ANSWER_DELAY_S - time.monotonic()
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._flush)
            return
        self._thread = get_ident()
        self.ingest.flush()
        if self._finished:
            self._answer()

    def _durable(self, batch: _CallBatch, error: BaseException | None) -> None:
        # The store's writer thread calls this for one batch after the other: wake the loop once for
        # all of them.
        self._finished.append((batch, error))
        # in this thread `submit` or `_flush` answers
        if not self._woken and get_ident() != self._thread:
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop is closed: no call is left to answer
                _log.debug("a batch became durable after the end of the event loop")

    def _answer(self) -> None:
        self._woken = False
        touched = set()
        now = time.monotonic()
        while self._finished:
            batch, error = self._finished.popleft()
            self.queued -= batch.size
            if batch.later is not None:
                batch.later.held -= 1
                self._later -= batch.size
            streams = batch.streams
            if isinstance(error, RefusedRecordsError):
                for place, refusal in error.refused.items():
                    batch.lane.answer([streams[place]], refusal)
                self.ingest.observe(now - batch.began, len(error.refused), ok=False)
                streams = [s for place, s in enumerate(streams) if place not in error.refused]
                error = None
            batch.lane.answer(streams, error)
            touched.add(batch.lane)
            self.ingest.observe(now - batch.began, len(streams), ok=error is None)
        for lane in touched:
            lane.flush()
        if self._full and self.queued <= self.limits.queued // 2:
            self._full = False
            for lane in self.lanes:
                lane.set_read_paused(on=False)

    async def run_maintenance(self) -> None:
        """Call `close_idle` every 5 s until cancelled."""
        while True:
            await asyncio.sleep(_MAINTENANCE_INTERVAL_S)
            await self.close_idle(time.monotonic())

    async def close_idle(self, now: float) -> None:
        """Give up uploads that are stalled and close connections that are idle.

        Looks at some connections a turn of the loop: writers don't wait for 8,000 others.
        """
        for upload in self.uploads.stalled(now - self.limits.stalled_s):
            upload.owner.reset(upload.stream, CANCEL)
        for number, lane in enumerate(list(self.lanes), 1):
            lane.close_if_idle(now)
            if not number % _CLOSED_PER_TURN:
                await asyncio.sleep(0)

    @property
    def full(self) -> bool:
        """Return whether connections aren't read because the store lags behind."""
        return self._full

    async def drain(self, timeout_s: float) -> None:
        """Send GOAWAY to every client, wait for open calls up to `timeout_s`, and close."""
        for lane in list(self.lanes):
            lane.go_away()
        deadline = time.monotonic() + timeout_s
        await asyncio.sleep(0.05)  # calls that crossed the GOAWAY are still served
        while time.monotonic() < deadline and any(lane.busy for lane in self.lanes):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for lane in list(self.lanes):
            lane.close()

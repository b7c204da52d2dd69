"""What all lane connections of a process share: the way into the store, and the memory they may take."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from threading import get_ident
from typing import NamedTuple

from pump_service.lane.frames import CANCEL
from pump_service.lane.limits import LaneLimits
from pump_service.lane.roles import Bridge, Connection, Ingest, Splice
from pump_service.lane.uploads import UploadBudget
from pump_service.store import Record

_log = logging.getLogger(__name__)


_SMALL = 64 << 10
_ALONE, _HERE = 16, 256
"""After so many calls in a row that found nobody waiting, so many are written by the thread that read them. It can't
see meanwhile who else is waiting, so it looks again then.
"""


class _Batch(NamedTuple):
    lane: Connection
    streams: list[int]
    size: int
    began: float


class LaneContext:
    """Hands batches of calls to the store and gives each connection its verdicts, in the loop's thread.

    `splice` takes over a connection that isn't WriteBinlog's; `bridge` answers another call on a lane connection.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ingest: Ingest, limits: LaneLimits, splice: Splice, bridge: Bridge
    ) -> None:
        self.loop = loop
        self.ingest = ingest
        self.limits = limits
        self.splice = splice
        self.bridge = bridge
        self.lanes: set[Connection] = set()
        self.uploads = UploadBudget(limits.partial, limits.share)
        self.calls = 0  # others than WriteBinlog, until their tasks have ended
        self.queued = 0  # payload bytes that the store has and has not made durable
        self._finished: deque[tuple[_Batch, BaseException | None]] = deque()
        self._woken = False
        self._thread = 0  # the loop's
        self._alone = 0  # calls in a row that found nothing else waiting
        self._full = False

    def submit(self, lane: Connection, records: list[Record], streams: list[int]) -> None:
        """Give a connection's calls to the store; `lane.answer` follows when they are durable."""
        size = 256 * len(records)
        for record in records:
            size += len(record.payload)
        here = self._is_alone(len(records), size)
        self.queued += size
        self._thread = get_ident()
        batch = _Batch(lane, streams, size, time.monotonic())
        try:
            self.ingest.submit(records, partial(self._durable, batch), lane.origin, here=here)
        except Exception as error:  # the store is closed or broken: the calls get its error
            self._durable(batch, error)
        if self.queued > self.limits.queued and not self._full:
            self._full = True
            for other in self.lanes:
                other.hold(on=True)

    def _is_alone(self, calls: int, size: int) -> bool:
        """Whether a single caller seems to be all there is: nobody else would wait while this thread writes."""
        sole = self.queued == 0 and calls == 1 and size <= _SMALL and self._alone < _ALONE + _HERE
        self._alone = self._alone + 1 if sole else 0
        return self._alone > _ALONE

    def _durable(self, batch: _Batch, error: BaseException | None) -> None:
        # The store's writer thread calls this for one batch after the other: wake the loop once for all of them.
        self._finished.append((batch, error))
        if get_ident() == self._thread:  # written from within `submit`: nobody need be woken
            self._answer()
        elif not self._woken:
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop is closed: nobody is left to answer
                _log.debug("a batch became durable after the end of the event loop")

    def _answer(self) -> None:
        self._woken = False
        touched = set()
        now = time.monotonic()
        while self._finished:
            batch, error = self._finished.popleft()
            self.queued -= batch.size
            batch.lane.answer(batch.streams, error)
            touched.add(batch.lane)
            self.ingest.observe(now - batch.began, len(batch.streams), ok=error is None)
        for lane in touched:
            lane.flush()
        if self._full and self.queued <= self.limits.queued // 2:
            self._full = False
            for lane in self.lanes:
                lane.hold(on=False)

    async def keep_house(self, every_s: float = 5.0) -> None:
        """Give up uploads that stand still and close connections that nobody uses, now and then; cancel
        it to end it.
        """
        while True:
            await asyncio.sleep(every_s)
            self.clear_out(time.monotonic())

    def clear_out(self, now: float) -> None:
        """As `keep_house`, once."""
        for upload in self.uploads.stalled(now - self.limits.stalled_s):
            upload.owner.reset(upload.stream, CANCEL)
        for lane in list(self.lanes):
            lane.clear_out(now)

    @property
    def full(self) -> bool:
        """True while the store lags so far behind that connections aren't read."""
        return self._full

    async def drain(self, timeout_s: float) -> None:
        """Ask every client to go away, wait until all calls are answered or the time is up, and close."""
        for lane in list(self.lanes):
            lane.go_away()
        deadline = time.monotonic() + timeout_s
        await asyncio.sleep(0.05)  # calls that crossed the GOAWAY are still served
        while time.monotonic() < deadline and any(lane.busy for lane in self.lanes):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for lane in list(self.lanes):
            lane.close()

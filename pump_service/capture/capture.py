"""Run a capture: threads that subscribe, match, hand on, resolve locks, and retry after errors.

The sink's last resolved timestamp is the only state that lasts. After a transient error, or a
restart of the pump, everything is subscribed from there.
"""

from __future__ import annotations

import gc
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sluice.errors import SluiceError, ours
from sluice.pump_service.capture.coverage import Coverage
from sluice.pump_service.capture.lock_watch import LockWatch
from sluice.pump_service.capture.matcher import MatcherTotals
from sluice.pump_service.capture.owned_changes import OwnedChanges
from sluice.pump_service.capture.run_files import RunFolder
from sluice.pump_service.capture.sorter import CommitSorter
from sluice.pump_service.capture.streams import Inbox, Located, Message, StoreStreams
from sluice.pump_service.capture.subscriptions import (
    CaptureRefusedError,
    Locate,
    Send,
    Subscriptions,
)
from sluice.pump_service.capture.transactions import CaptureSink
from sluice.tidb import pb
from sluice.tidb.pd import PDClient, PDError
from sluice.tidb.rpc import TLS
from sluice.tidb.table_shares import Share
from sluice.tidb.tikv import TiKVClient

_log = logging.getLogger(__name__)

SPANS = ((b"m", b"n"), (b"t", b"u"))
"""Raw keys that are captured: TiDB's meta keys, and all tables."""
REGIONS_PER_CALL = 1024
_TICK_S = 0.1
_FRONTIER_INTERVAL_S, _FRONTIER_SHARE = 0.01, 20
"""How often the least of all resolved timestamps is computed, and which part of the time it may
take: of 100,000 pieces it takes 5 ms.
"""
_GC_THRESHOLDS = (100_000, 20, 100)
_SPACE_CHECK_INTERVAL_S = 0.5
_RESTART_S, _MAX_RESTART_S = 1.0, 30.0
_STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """Hold what metrics and pages show of a capture."""

    frontier_ts: int = 0
    regions: dict[str, int] = field(default_factory=dict)
    """Pieces of the key space by state (`unknown`, `locating`, `waiting`, `scanning`, `live`)."""
    unmatched_prewrites: int = 0
    memory_bytes: int = 0
    spilled_changes: int = 0
    received_bytes: int = 0
    events: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    failure: str = ""
    """Error that ended the capture; "" while it runs."""
    held_back_by: str = ""
    """Description of the lock or the region that holds the frontier back."""
    replicas: dict[str, str] = field(default_factory=dict)
    """First difference from each pump that captures the same cluster, by node id; "" if none.

    Of two pumps the one with the greater node id compares them.
    """
    share: str = ""
    """Share of the tables, such as 2/3; "" for all."""


@dataclass(frozen=True, slots=True)
class CaptureCluster:
    """Hold the clients of the upstream cluster, and the share of its tables that is captured."""

    pd: PDClient
    tikv: TiKVClient
    tls: TLS | None = None
    share: Share = field(default_factory=Share)


class Capture:
    """Capture changes into sinks, from `start` to `stop`.

    `begin()` prepares a start: it claims the history in TiKV, and returns the timestamp to begin
    behind and the sink. It is called again after a transient error.
    """

    def __init__(
        self,
        cluster: CaptureCluster,
        begin: Callable[[], tuple[int, CaptureSink]],
        folder: Path,
        memory_bytes: int,
        spare_bytes: int = 0,
    ) -> None:
        """Beyond `memory_bytes` changes are in files in `folder`, while its disk has `spare_bytes`.

        Then nothing more is taken from TiKV until there is room, in memory or on the disk.
        """
        self._cluster, self._begin = cluster, begin
        self._folder, self._spare_bytes = folder, spare_bytes
        self._memory_bytes = memory_bytes
        self._stop = threading.Event()
        self._session: _Session | None = None
        self._restarts = 0
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        # Changes are tuples without cycles. Python's default would look through all that wait
        # in memory after every 700 new ones, which took a quarter of the time.
        gc.set_threshold(*_GC_THRESHOLDS)
        self._thread.start()

    def stop(self) -> None:
        """End the capture; waits for a write of the sink that is under way."""
        self._stop.set()
        session = self._session
        if session is not None:
            session.end()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)

    def fail(self, why: str) -> None:
        """End the capture for good: it can't go on correctly."""
        _log.error("capture ends: %s", why)
        self._failure = self._failure or why
        self._stop.set()
        session = self._session
        if session is not None:
            session.end()

    def status(self) -> CaptureStatus:
        """Return the current figures."""
        session = self._session
        if session is None:
            return CaptureStatus(restarts=self._restarts, failure=self._failure)
        return session.status(self._restarts, self._failure)

    def _run(self) -> None:
        delay_s = _RESTART_S
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                from_ts, sink = self._begin()
                folder = RunFolder(self._folder, self._spare_bytes)
                self._session = _Session(self._cluster, from_ts, sink, folder, self._memory_bytes)
                if not self._stop.is_set():
                    _log.info("capture begins after_ts=%d", from_ts)
                    self._session.run()
            except Exception as failure:
                if self._stop.is_set():
                    return
                error = failure if isinstance(failure, SluiceError) else ours(failure)
                if not error.transient:
                    _log.exception("capture can't go on")
                    self.fail(f"{error}: {error.hint}")
                    return
                if time.monotonic() - began > _MAX_RESTART_S:
                    delay_s = _RESTART_S
                _log.warning("capture begins again in_s=%.0f error=%s", delay_s, error)
                self._restarts += 1
                self._stop.wait(delay_s)
                delay_s = min(delay_s * 2, _MAX_RESTART_S)


class _Session:
    """Capture from one timestamp on until an error or `end`."""

    def __init__(
        self,
        cluster: CaptureCluster,
        from_ts: int,
        sink: CaptureSink,
        folder: RunFolder,
        memory_bytes: int,
    ) -> None:
        self._pd, self._sink, self._folder = cluster.pd, sink, folder
        self._sorter = CommitSorter(folder, memory_bytes // 2)
        self._totals = MatcherTotals(self._sorter, memory_bytes // 2)
        self._coverage = Coverage(SPANS, from_ts, cluster.share)
        self._owned = OwnedChanges(cluster.share)
        self._subscriptions = Subscriptions(self._coverage, self._totals, cluster.pd.cluster_id)
        self._inbox = Inbox()
        self._streams = StoreStreams(cluster.pd, self._inbox, cluster.tls)
        self._locates: queue.SimpleQueue[Locate | None] = queue.SimpleQueue()
        self._locks = LockWatch(cluster.pd, cluster.tikv)
        self._end = threading.Event()
        self._frontier = self._taken = from_ts
        self._moved = threading.Condition()
        self._failure: Exception | None = None
        self._lack = ""
        """Description of the disk whose space the matcher waits for."""

    def end(self) -> None:
        """End soon; any thread may call this."""
        self._end.set()
        self._inbox.close()
        with self._moved:
            self._moved.notify_all()

    def status(self, restarts: int, failure: str) -> CaptureStatus:
        """Return the figures; they are approximate, because other threads go on."""
        return CaptureStatus(
            frontier_ts=self._taken,
            regions=dict(Counter(piece.state.name.lower() for piece in list(self._coverage))),
            unmatched_prewrites=self._totals.prewrites,
            memory_bytes=self._sorter.bytes + self._totals.bytes,
            spilled_changes=self._sorter.spilled_changes,
            received_bytes=self._inbox.received_bytes,
            events=dict(self._subscriptions.events),
            restarts=restarts,
            failure=failure,
            held_back_by=self._lack or self._locks.held_back_by,
        )

    def run(self) -> None:
        """Capture. Raises what ended it."""
        threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in (
                (self._locate, "capture-pd"),
                (self._hand_on, "capture-sink"),
                (self._locks.run, "capture-locks"),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            self._match()
        finally:
            self.end()
            self._locates.put(None)
            self._locks.stop()
            self._streams.close()
            for thread in threads:
                thread.join()  # the next session empties the folder that they read
        if self._failure is not None:
            raise self._failure

    def _match(self) -> None:
        now = next_tick = next_frontier = 0.0
        is_stale = False
        while not self._end.is_set():
            due = min(next_tick, next_frontier) if is_stale else next_tick
            for item in self._inbox.take(max(due - now, 0.0)):
                self._handle(item)
                is_stale = True
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + _TICK_S
                self._subscriptions.tick(now)
                self._locks.look(self._frontier, self._subscriptions.live)
            self._act()
            if is_stale and now >= next_frontier:
                is_stale = False
                self._advance()
                spent_s = time.monotonic() - now
                next_frontier = now + max(_FRONTIER_INTERVAL_S, spent_s * _FRONTIER_SHARE)

    def _handle(self, item: Message | Located) -> None:
        now = time.monotonic()
        if isinstance(item, Located):
            if item.regions is None:
                self._subscriptions.not_located(item.start, item.end, now)
            else:
                self._subscriptions.located(item.start, item.end, item.regions, now)
        elif item.refusal:
            raise CaptureRefusedError(item.refusal)
        elif item.payload is None:
            self._subscriptions.stream_ended(item.store_id, item.stream, now)
        else:
            with self._sorter.lock:
                message = pb.cdc.ChangeDataEvent.FromString(item.payload)
                self._subscriptions.received(item.store_id, item.stream, message, now)
            self._relieve()

    def _relieve(self) -> None:
        """Move what exceeds memory to disk. Wait while the disk has no room for it.

        The sink goes on, which may make room in memory.
        """
        while (self._sorter.is_full or self._totals.is_full) and not self._end.is_set():
            lack = self._folder.lack()
            if lack and not self._lack:
                _log.error("capture waits for room on %s", lack)
            self._lack = lack
            if not lack:
                self._sorter.relieve()
                self._totals.relieve()
                return
            self._end.wait(_SPACE_CHECK_INTERVAL_S)
        self._lack = ""

    def _act(self) -> None:
        actions, self._subscriptions.actions = self._subscriptions.actions, []
        for action in actions:
            if isinstance(action, Send):
                self._streams.send(action)
            else:
                self._locates.put(action)

    def _advance(self) -> None:
        frontier = self._coverage.frontier()
        if frontier > self._frontier:
            with self._moved:
                self._frontier = frontier
                self._moved.notify_all()

    def _locate(self) -> None:
        while (wanted := self._locates.get()) is not None:
            regions = None
            try:
                regions = self._pd.scan_regions(wanted.start, wanted.end, REGIONS_PER_CALL)
            except PDError as error:
                _log.warning("regions not found start=%s error=%s", wanted.start.hex(), error)
            self._inbox.put(Located(wanted.start, wanted.end, regions))

    def _hand_on(self) -> None:
        try:
            while True:
                with self._moved:
                    self._moved.wait_for(lambda: self._frontier > self._taken or self._end.is_set())
                    through = self._frontier
                if self._end.is_set():
                    return
                self._sink.advance(self._owned.of(self._sorter.take(through)), through)
                self._taken = through
        except Exception as failure:
            self._failure = failure
            self.end()

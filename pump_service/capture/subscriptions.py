"""Decide which region is subscribed where and when, and what each message of TiKV means.

Nothing here does I/O or looks at a clock: the caller passes messages and the time in, and carries
out the `actions`. So tests play every schedule of splits, merges, errors and lost streams.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from sluice.errors import SluiceError
from sluice.pump_service.capture.coverage import Coverage, Piece, PieceState
from sluice.pump_service.capture.matcher import Matcher, MatcherTotals, UnmatchedCommitError
from sluice.tidb import pb
from sluice.tidb.backoff import doubled
from sluice.tidb.codec.memcomparable import encode_bytes
from sluice.tidb.pd import Peer, Region

_MAX_SCANNING = 512
"""Subscriptions of a store that are not live yet; more would only queue in TiKV."""
_RETRY_RANGE_S = 0.1, 5.0
_STREAM_RETRY_S = 1.0
_SILENT_S = 60.0
"""A live subscription of which nothing was heard, not even a resolved ts, is renewed after this
time.
"""
_SILENT_SCAN_S = 900.0
"""The same for one that is not live: TiKV may have many scans to do before."""
_CHECK_INTERVAL_S = 5.0
_MAX_TICK_S = 5.0
"""A longer time between two ticks isn't the regions' silence: the capture waited for its disk, or
its process stood still. All of them would be scanned again.
"""


class CaptureRefusedError(SluiceError):
    """Report that TiKV refuses this client for good."""

    hint = (
        "check that pd-urls name the cluster of this data directory and that its TiKV is 7.5 or"
        " newer"
    )


class Locate(NamedTuple):
    """Ask PD for the regions of [start, end); answer with `located` or `not_located`."""

    start: bytes
    end: bytes


class Send(NamedTuple):
    """Send a request on a store's stream of this number, which the first request opens."""

    store_id: int
    stream: int
    request: pb.cdc.ChangeDataRequest


class _Subscription:
    __slots__ = ("heard", "is_live", "matcher", "piece", "region", "request_id", "store")

    def __init__(
        self, piece: Piece, region: Region, request_id: int, store: _Store, matcher: Matcher
    ) -> None:
        self.piece, self.region, self.request_id = piece, region, request_id
        self.store, self.matcher = store, matcher
        self.heard = 0.0
        self.is_live = False


class _Store:
    def __init__(self, store_id: int, stream: int) -> None:
        self.id, self.stream = store_id, stream
        self.subscriptions: dict[tuple[int, int], _Subscription] = {}  # by request id and region
        self.requests: Counter[int] = Counter()  # by region: the last request id
        # a heap: recovering pieces come first
        self.waiting: list[tuple[bool, float, int, Piece]] = []
        self.scanning = 0


class Subscriptions:
    """Keep every piece of the coverage subscribed. Not thread-safe.

    `actions` collects what the caller has to do.
    """

    def __init__(self, coverage: Coverage, totals: MatcherTotals, cluster_id: int) -> None:
        self.coverage = coverage
        self._totals = totals
        self._header = pb.cdc.Header(cluster_id=cluster_id, ticdc_version="8.5.0")
        self._stores: dict[int, _Store] = {}
        self._streams = count(1)
        self._turns = count()
        self._next_check = 0.0
        self._awake_s = 0.0
        """Clock that stands still while nothing is taken from the streams."""
        self._ticked_at = 0.0
        self.actions: list[Locate | Send] = []
        self.events = Counter[str]()
        """Counts of rows, resolved timestamps, errors by kind, renewed subscriptions."""

    # what the caller reports

    def located(self, start: bytes, end: bytes, regions: Sequence[Region], now: float) -> None:
        """Take PD's answer: the regions from `start` on, in order; holes are asked for again."""
        found = self.coverage.located(start, end, regions)
        for piece in self.coverage.drop_foreign(found):
            assert piece.region is not None
            if piece.region.leader is None:
                self._retry(piece, now)
            else:
                self._wait(piece, piece.region, piece.region.leader, now)
        if found:  # an answer has a limited number of regions: what is behind them is no failure
            for piece in self.coverage.locating(start, end):
                piece.not_before = now
                self.coverage.mark(piece, PieceState.UNKNOWN)
            self.actions += [Locate(*due) for due in self.coverage.due(now)]
        else:
            self.not_located(start, end, now)
        self._admit(now)

    def not_located(self, start: bytes, end: bytes, now: float) -> None:
        """PD could not answer for what is left of this range."""
        for piece in self.coverage.locating(start, end):
            self._retry(piece, now)

    def received(
        self, store_id: int, stream: int, message: pb.cdc.ChangeDataEvent, now: float
    ) -> None:
        """Take a message of a stream.

        Raises CaptureRefusedError, and LateChangeError: then the capture must stop.
        """
        store = self._stores.get(store_id)
        if store is None or store.stream != stream:
            return
        for event in message.events:
            found = store.subscriptions.get((event.request_id, event.region_id))
            if found is None:
                continue
            found.heard = self._awake_s
            kind = event.WhichOneof("event")
            if kind == "entries":
                self._rows(found, event.entries, now)
            elif kind == "error":
                self._fail(found, event.error, now)
            elif kind == "resolved_ts":
                self._resolve(found, event.resolved_ts)
        resolved = message.resolved_ts
        if resolved.ts:
            self.events["resolved"] += len(resolved.regions)
            request_id, ts, of = resolved.request_id, resolved.ts, store.subscriptions
            for region_id in resolved.regions:
                found = of.get((request_id, region_id))
                if found is not None:
                    self._resolve(found, ts)
        self._admit(now)

    def stream_ended(self, store_id: int, stream: int, now: float) -> None:
        """Take the end of a stream: its subscriptions are lost, and begin again after a moment."""
        store = self._stores.get(store_id)
        if store is None or store.stream != stream:
            return
        self.events["stream ended"] += 1
        for found in list(store.subscriptions.values()):
            self._end(found)
            self._retry(found.piece, now, _STREAM_RETRY_S)
        for *_, piece in store.waiting:
            self._retry(piece, now, _STREAM_RETRY_S)
        del self._stores[store_id]

    def tick(self, now: float) -> None:
        """Look for pieces whose time has come, and for silent subscriptions.

        Call it several times a second.
        """
        self._awake_s += min(now - self._ticked_at, _MAX_TICK_S)
        self._ticked_at = now
        self.actions += [Locate(*due) for due in self.coverage.due(now)]
        if self._awake_s >= self._next_check:
            self._next_check = self._awake_s + _CHECK_INTERVAL_S
            self._renew_silent(now)
        self._admit(now)

    def _renew_silent(self, now: float) -> None:
        for store in self._stores.values():
            for found in list(store.subscriptions.values()):
                if self._awake_s - found.heard > (_SILENT_S if found.is_live else _SILENT_SCAN_S):
                    self.events["renewed"] += 1
                    self._deregister(found)
                    self._end(found)
                    self._retry(found.piece, now)

    # what is known

    def live(self) -> list[tuple[Piece, Region]]:
        """Return the pieces that are live, with their regions."""
        return [
            (found.piece, found.region)
            for store in self._stores.values()
            for found in store.subscriptions.values()
            if found.is_live
        ]

    # the steps

    def _rows(self, found: _Subscription, entries: pb.cdc.Event.Entries, now: float) -> None:
        self.events["rows"] += len(entries.entries)
        try:
            found.matcher.take_in(entries)
        except UnmatchedCommitError:
            self.events["unmatched"] += 1
            self._deregister(found)
            self._end(found)
            self._retry(found.piece, now)
            return
        if found.matcher.initialized and not found.is_live:
            found.is_live = True
            found.store.scanning -= 1
            self.coverage.mark(found.piece, PieceState.LIVE)
            found.piece.failures, found.piece.was_live = 0, True

    def _resolve(self, found: _Subscription, ts: int) -> None:
        found.heard = self._awake_s
        matcher = found.matcher
        # a lower one is of a batch with a slower region
        if matcher.initialized and ts > matcher.resolved_ts:
            matcher.resolved_ts = found.piece.resolved_ts = ts

    def _fail(self, found: _Subscription, error: pb.cdc.Error, now: float) -> None:
        kind = next((field.name for field, _ in error.ListFields()), "unknown")
        self.events[f"error {kind}"] += 1
        if kind in ("compatibility", "cluster_id_mismatch", "duplicate_request"):
            raise CaptureRefusedError(
                f"TiKV refuses region {found.region.id}: {' '.join(str(error).split())}"
            )
        piece, region = found.piece, found.region
        self._end(found)
        if kind == "not_leader" and error.not_leader.leader.id:
            leader = error.not_leader.leader
            piece.failures += 1
            self._wait(
                piece,
                region,
                Peer(leader.id, leader.store_id),
                now + doubled(piece.failures - 1, *_RETRY_RANGE_S) - _RETRY_RANGE_S[0],
            )
        elif kind in ("server_is_busy", "congested") and region.leader is not None:
            piece.failures += 1
            least_s = error.server_is_busy.backoff_ms / 1000
            delay = max(doubled(piece.failures, *_RETRY_RANGE_S), least_s)
            self._wait(piece, region, Peer(0, found.store.id), now + delay)
        else:
            self._retry(piece, now)

    def _retry(self, piece: Piece, now: float, least_s: float = 0.0) -> None:
        """Ask PD for the region of a piece after a while."""
        piece.not_before = now + max(doubled(piece.failures, *_RETRY_RANGE_S), least_s)
        piece.failures += 1
        self.coverage.mark(piece, PieceState.UNKNOWN)

    def _wait(self, piece: Piece, region: Region, leader: Peer, not_before: float) -> None:
        """Queue a piece for its leader's store."""
        store = self._stores.get(leader.store_id)
        if store is None:
            store = self._stores[leader.store_id] = _Store(leader.store_id, next(self._streams))
        piece.region = region
        self.coverage.mark(piece, PieceState.WAITING)
        heapq.heappush(store.waiting, (not piece.was_live, not_before, next(self._turns), piece))

    def _admit(self, now: float) -> None:
        for store in self._stores.values():
            later = []
            while store.waiting and store.scanning < _MAX_SCANNING:
                entry = heapq.heappop(store.waiting)
                if entry[1] > now:
                    later.append(entry)
                else:
                    self._subscribe(entry[3], store, now)
            for entry in later:
                heapq.heappush(store.waiting, entry)

    def _subscribe(self, piece: Piece, store: _Store, now: float) -> None:
        region = piece.region
        assert region is not None
        # A pair of region and request id is never used twice on a stream: what TiKV sends late
        # for a former subscription can't be taken for the new one.
        store.requests[region.id] += 1
        request_id = store.requests[region.id]
        matcher = Matcher(piece.start, piece.end, piece.resolved_ts, self._totals)
        found = _Subscription(piece, region, request_id, store, matcher)
        found.heard = self._awake_s
        store.subscriptions[request_id, region.id] = found
        store.scanning += 1
        self.coverage.mark(piece, PieceState.SCANNING)
        request = pb.cdc.ChangeDataRequest(
            header=self._header,
            region_id=region.id,
            region_epoch=pb.metapb.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
            checkpoint_ts=piece.resolved_ts,
            start_key=encode_bytes(piece.start),
            end_key=encode_bytes(piece.end),
            request_id=request_id,
            extra_op=pb.tikv.ReadOldValue,
            register=pb.cdc.ChangeDataRequest.Register(),
        )
        self.actions.append(Send(store.id, store.stream, request))

    def _deregister(self, found: _Subscription) -> None:
        request = pb.cdc.ChangeDataRequest(
            header=self._header,
            region_id=found.region.id,
            request_id=found.request_id,
            deregister=pb.cdc.ChangeDataRequest.Deregister(),
        )
        self.actions.append(Send(found.store.id, found.store.stream, request))

    def _end(self, found: _Subscription) -> None:
        if not found.is_live:
            found.store.scanning -= 1
        found.matcher.close()
        del found.store.subscriptions[found.request_id, found.region.id]

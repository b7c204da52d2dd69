"""Plan windows: how far the next one may reach without missing a commit.

1. A fresh timestamp from PD.
2. The pumps in the registry; all that are not offline count.
3. Each of them is asked for its bounds, and what is in the window if that is little; those that
   counted the last time while the registry answers.
4. hi = the smallest of the timestamp and every pump's hi.

One of the pumps asks PD whether it has given the timestamp, so that one of a PD that isn't theirs
ends in an error. The others learn of it from the request, and needn't if they have nothing in the
window: then they don't move their marks either.

A pump without the call Bounds is an original one: its PullBinlogs stream is followed instead, and
its bounds are what has arrived (sluice.tidb.pumps.pulled_window).

The order matters. TiDB asks PD for a commit timestamp only after a pump has acknowledged the
Prewrite, and a pump is in the registry before it takes writes: so a commit at or below the fresh
timestamp can only be on a pump that is listed, and its Prewrite is there already.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.etl.landing._commit_notifier import CommitNotifier
from sluice.etl.landing._counted_pumps import FAKE_BINLOG_INTERVAL, PumpMembership
from sluice.etl.landing._late import LateCommitCheck
from sluice.etl.landing._pump_errors import (
    CommitsPurgedError,
    MissedCommitError,
    PumpUnavailableError,
    UnreadPumpError,
    UpstreamBehindError,
)
from sluice.etl.landing.extract import PumpRange
from sluice.tidb import tso

if TYPE_CHECKING:
    from sluice.etl.settings import Window as WindowSettings
    from sluice.relay import RelayLog
    from sluice.tidb import TLS, NodeStatus, PumpReader, PumpReadError, WindowBounds
    from sluice.tidb.pumps import PendingBounds, PullFollower

_BARRIER_TIMEOUT_MS = 100
_COMMIT_WAIT_TIMEOUT_MS = 5_000
_BOUNDS_TIMEOUT_S = 10.0
_MAX_INLINE_BYTES = 256 * 2**10
_SPLIT_BYTES = 8 * 2**20
_MAX_SPLITS = 4

__all__ = [
    "CommitsPurgedError",
    "MissedCommitError",
    "PumpUnavailableError",
    "UnreadPumpError",
    "UpstreamBehindError",
    "WindowPlan",
    "WindowPlanner",
]


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """A window `(lo, hi]` to be landed."""

    lo: int
    hi: int
    fresh_ts: int
    """PD's timestamp when it was planned."""
    ranges: tuple[PumpRange, ...]
    """The ranges to read; empty if no pump has anything in the window."""
    transactions: int
    """An upper bound: those that the pumps have up to their own hi."""
    bytes: int
    limited: bool
    """More is waiting behind hi."""


class WindowPlanner:
    """Plans windows over the pumps of a cluster. Thread-safe."""

    def __init__(  # noqa: PLR0913 the sources of a plan, and the relay log
        self,
        cluster_id: int,
        limits: WindowSettings,
        tso: Callable[[], int],
        pumps: Callable[[], Sequence[NodeStatus]],
        tls: TLS | None = None,
        relay: RelayLog | None = None,
    ) -> None:
        """`tso` returns fresh timestamps, `pumps` the registry's entries.

        `tls` is for connections to pumps.

        `relay`: the log that records the pumps that counted; None to trust the registry alone.
        """
        self._counted_pumps = PumpMembership(relay.known_pumps if relay is not None else None)
        self._late_commits = LateCommitCheck(relay)
        self._tls = tls
        self._cluster_id = cluster_id
        self._limits = limits
        self._tso = tso
        self._pumps = pumps
        self._readers: dict[str, PumpReader] = {}
        self._followers: dict[str, PullFollower] = {}
        self._notifier = CommitNotifier(_COMMIT_WAIT_TIMEOUT_MS)
        self._notified = False
        self._counted: list[NodeStatus] = []
        self._turn = threading.Lock()
        self._threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="bounds")
        self._last_window = time.monotonic()
        self.limiting_pump = ""
        """The pump that holds the next window back, if one does; for progress lines."""
        self._seen: tuple[int, float] | None = None

    @property
    def seen_ts(self) -> int:
        """Return PD's clock (TSO), extrapolated from its last timestamp; 0 before the first."""
        if self._seen is None:
            return 0
        ts, then = self._seen
        return ts + tso.span(int((time.monotonic() - then) * 1000))

    def plan(self, lo: int, *, empty_now: bool = False) -> WindowPlan | None:
        """Return the next window after lo (TSO); None if there is nothing new.

        Without traffic there is an empty window every idle interval, or at once with `empty_now`.
        Raises PumpUnavailableError, UnreadPumpError, UpstreamBehindError, CommitsPurgedError,
        MissedCommitError, and what `tso`, `pumps` and the relay log raise.
        """
        with self._turn:
            return self._plan(lo, empty_now=empty_now)

    def _plan(self, lo: int, *, empty_now: bool) -> WindowPlan | None:
        # One below a timestamp that is landing's own: nothing is ever committed right behind the
        # window, so that a DDL has room before the first row of the next (see
        # docs/decisions/0040-multi-schema-change.md).
        fresh_ts = self._tso() - 1
        self._seen = fresh_ts, time.monotonic()
        if fresh_ts <= lo:
            raise UpstreamBehindError(
                f"PD's clock went back: it is at {tso.text(fresh_ts)}, but commits through"
                f" {tso.text(lo)} are landed. What TiDB commits at timestamps in ({fresh_ts}, {lo}]"
                " from now on would be passed over",
                hint=(
                    "if pd-urls names the PD of another cluster, correct it. Else have PD go on"
                    f" above {lo}, then `sluice resume`, and `sluice verify` with --repair for what"
                    " was committed meanwhile"
                ),
            )
        early = [pump for pump in self._counted if pump.host in self._readers]
        # The first one asks PD whether it has given the timestamp; the others need not, if they
        # have nothing.
        asked = {
            _pump_key(pump): self._request_bounds(
                pump, lo, fresh_ts, ts_is_checked=pump is not early[0]
            )
            for pump in early
        }
        try:
            counting = self._counting(lo)
        except BaseException:
            _collect(asked.values())
            raise
        hosts = {pump.host for pump in counting}
        for host in self._followers.keys() - hosts:
            self._followers.pop(host).close()
        for host in self._readers.keys() - hosts:
            self._readers.pop(host).close()
        counted = {_pump_key(pump) for pump in counting}
        is_checked = bool(early) and _pump_key(early[0]) in counted
        if not is_checked or not counted <= asked.keys():
            # A new pump may have the same address. The answers of pumps that are gone are not
            # needed.
            _collect(question for (_, host, _), question in asked.items() if host in hosts)
        if not is_checked:
            asked.clear()
        questions = [
            asked.get(_pump_key(pump)) or self._request_bounds(pump, lo, fresh_ts)
            for pump in counting
        ]
        self._counted = counting
        failures = [
            failure for question in questions if (failure := question.failure()) is not None
        ]
        if failures:
            raise failures[0]
        bounds = [question.answer() for question in questions]
        # an original pump in its place, which checks nothing
        if is_checked and early[0].host in self._followers:
            return None
        for pump, bound in zip(counting, bounds):
            if self._counted_pumps.is_new(pump.node_id) and pump.host in self._readers:
                if bound.max_commit_ts < lo:
                    return None  # it can't be asked yet what it holds
                self._check_new_pump(pump, lo)
        self._counted_pumps.record(counting, self._followers)
        for pump, bound in zip(counting, bounds):
            self._late_commits.check(pump.node_id, bound.late)
        slowest, bound = min(zip(counting, bounds), key=lambda pair: pair[1].hi)
        hi = min(fresh_ts, bound.hi)
        slack = FAKE_BINLOG_INTERVAL if slowest.host in self._followers else 0
        self.limiting_pump = (
            f"{slowest.node_id} ({slowest.host}, {slowest.state})"
            if bound.max_commit_ts < fresh_ts - slack
            else ""
        )
        if hi <= lo:
            return None
        transactions = sum(bound.transactions for bound in bounds)
        idle_s = time.monotonic() - self._last_window
        if not transactions and not empty_now and idle_s * 1000 < self._limits.idle_interval_ms:
            return None
        self._last_window = time.monotonic()
        self._notified = False
        ranges = [
            piece
            for pump, bound in zip(counting, bounds)
            if bound.transactions
            for piece in _split_range(PumpRange(pump.host, lo, hi, bound.window), bound.bytes)
        ]
        limited = any(bound.hi < bound.max_commit_ts for bound in bounds)
        return WindowPlan(
            lo,
            hi,
            fresh_ts,
            tuple(ranges),
            transactions,
            sum(bound.bytes for bound in bounds),
            limited,
        )

    def _check_new_pump(self, pump: NodeStatus, lo: int) -> None:
        from sluice.tidb import PumpReadError

        try:
            self._late_commits.check_new_pump(pump.node_id, self._readers[pump.host], lo)
        except PumpReadError as error:
            raise self._read_error(pump, lo, error) from error

    def invalidate(self) -> None:
        """Drop what was read from the relay log: another process may have landed since."""
        self._counted_pumps.invalidate()

    def _counting(self, lo: int) -> list[NodeStatus]:
        """Return the pumps that count now.

        Raises PumpUnavailableError if there is none, or if one is missing, and UnreadPumpError.
        """
        registered = self._pumps()
        self._counted_pumps.check(registered, lo)
        counting = [pump for pump in registered if pump.state != "offline"]
        if not counting:
            raise PumpUnavailableError(
                f"{len(registered)} pumps in the registry, all offline: no commit can be read until"
                " one is online"
                if registered
                else "no pump in the registry: start one, or check pd-urls"
            )
        _check_addresses(counting)
        return counting

    def wait_for_commits(self, lo: int, seconds: float) -> bool:
        """Wait at most `seconds`.

        Return whether a pump may have a transaction committed after lo (TSO).

        A pump that doesn't support such calls may have one after the poll interval.
        """
        with self._turn:
            readers = [] if self._followers else list(self._readers.values())
        poll_s = min(seconds, self._limits.poll_interval_ms / 1000)
        if self._notified:  # the commit that was announced can't be landed yet
            time.sleep(poll_s)
        heard = self._notifier.wait(readers, lo, seconds) if readers else None
        self._notified = bool(heard)
        if heard is None:
            time.sleep(poll_s)
        return heard is not False

    def close(self) -> None:
        """Close the connections to the pumps."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for follower in self._followers.values():
            follower.close()
        for reader in self._readers.values():
            reader.close()
        self._followers.clear()
        self._readers.clear()

    def _request_bounds(
        self, pump: NodeStatus, lo: int, fresh_ts: int, *, ts_is_checked: bool = False
    ) -> _BoundsRequest:
        """Send the request for a pump's bounds.

        `ts_is_checked`: see `PumpReader.request_bounds`.
        """
        reader = self._readers.get(pump.host) if pump.host not in self._followers else None
        limits = self._limits.max_transactions, self._limits.max_bytes
        asked = lo, fresh_ts, _BARRIER_TIMEOUT_MS, *limits, _MAX_INLINE_BYTES
        begun = reader.request_bounds(*asked, ts_is_checked=ts_is_checked) if reader else None
        return _BoundsRequest(begun, lambda: self._threads.submit(self._bounds, pump, lo, fresh_ts))

    def _bounds(self, pump: NodeStatus, lo: int, fresh_ts: int) -> WindowBounds:
        from sluice.tidb import PumpReadError

        try:
            bounds = self._follow_original_pump(pump, lo)
            if bounds is not None:
                return bounds
            try:
                return self._request_from_sluice(pump, lo, fresh_ts)
            except PumpReadError as error:
                if not error.unimplemented:
                    raise
            return self._follow(pump, lo)
        except PumpReadError as error:
            raise self._read_error(pump, lo, error) from error

    def _read_error(
        self, pump: NodeStatus, lo: int, error: PumpReadError
    ) -> CommitsPurgedError | PumpUnavailableError:
        """Return what it means for landing that a pump can't be asked."""
        import grpc

        from sluice.tidb.pumps import CommitsGoneError
        from sluice.tidb.rpc import status

        if (
            isinstance(error, CommitsGoneError)
            or status(error.__cause__ or error) == grpc.StatusCode.OUT_OF_RANGE
        ):
            return CommitsPurgedError(
                f"pump {pump.node_id} at {pump.host}: {error}; the relay log ends at {lo}",
                hint=CommitsPurgedError.hint,
            )
        return PumpUnavailableError(
            f"pump {pump.node_id} at {pump.host}, state {pump.state}, can't be asked ({error});"
            " every window waits for it",
            hint=(
                f"start it again; if it is gone for good: `sluice pumps offline {pump.node_id}"
                " --gone`"
            ),
        )

    def _request_from_sluice(self, pump: NodeStatus, lo: int, fresh_ts: int) -> WindowBounds:
        """Return the bounds from a Sluice pump."""
        from sluice.tidb import PumpReader, PumpReadError

        reader = self._readers.get(pump.host)
        if reader is None:
            reader = self._readers[pump.host] = PumpReader(
                pump.host, self._cluster_id, tls=self._tls, timeout_s=_BOUNDS_TIMEOUT_S
            )
        try:
            limits = self._limits.max_transactions, self._limits.max_bytes
            return reader.bounds(lo, fresh_ts, _BARRIER_TIMEOUT_MS, *limits, _MAX_INLINE_BYTES)
        except PumpReadError:
            self._readers.pop(pump.host, None)
            reader.close()
            raise

    def _follow_original_pump(self, pump: NodeStatus, lo: int) -> WindowBounds | None:
        """Return the bounds of an original pump that is followed from `lo` on; None if it isn't.

        Once its stream has broken, it is tried as any other pump: a Sluice pump may have taken its
        place.
        """
        from sluice.tidb import PumpReadError

        follower = self._followers.get(pump.host)
        if follower is None:
            return None
        try:
            if follower.follows(lo):
                return follower.bounds(lo)
        except PumpReadError:
            del self._followers[pump.host]
            follower.close()
            raise
        del self._followers[pump.host]  # a window is planned again
        follower.close()
        return None

    def _follow(self, pump: NodeStatus, lo: int) -> WindowBounds:
        """Begin to follow an original pump."""
        from sluice.tidb import PumpReader, PumpReadError
        from sluice.tidb.pumps import PullFollower

        reader = PumpReader(pump.host, self._cluster_id, tls=self._tls, timeout_s=_BOUNDS_TIMEOUT_S)
        try:
            follower = PullFollower(
                reader, lo, self._limits.max_transactions, self._limits.max_bytes
            )
        except PumpReadError:
            reader.close()
            raise
        self._followers[pump.host] = follower
        return follower.bounds(lo)


class _BoundsRequest:
    """A request for a pump's bounds, over a connection that this or another thread reads."""

    def __init__(
        self, begun: PendingBounds | None, by_thread: Callable[[], Future[WindowBounds]]
    ) -> None:
        self._pending = begun
        self._by_thread = by_thread
        self._future = by_thread() if begun is None else None

    def collect(self) -> Future[WindowBounds]:
        """Wait for the outcome."""
        if self._future is None:
            self._future = self._received()
        self._future.exception()
        return self._future

    def failure(self) -> BaseException | None:
        """Return the error of the request; None if it was answered."""
        return self.collect().exception()

    def answer(self) -> WindowBounds:
        """Return the bounds. Raises as `WindowPlanner._bounds`."""
        return self.collect().result()

    def _received(self) -> Future[WindowBounds]:
        from sluice.tidb import PumpReadError

        assert self._pending is not None
        answer = None
        # the second request raises it again, and names the pump
        with contextlib.suppress(PumpReadError):
            answer = self._pending.get()
        if answer is None:
            return self._by_thread()
        found: Future[WindowBounds] = Future()
        found.set_result(answer)
        return found


def _collect(questions: Iterable[_BoundsRequest]) -> None:
    for question in list(questions):
        question.collect()


def _pump_key(pump: NodeStatus) -> tuple[str, str, str]:
    """Return the parts of a pump's entry that decide how it is asked."""
    return pump.node_id, pump.host, pump.state


def _check_addresses(pumps: Sequence[NodeStatus]) -> None:
    """Raise PumpUnavailableError if one pump would answer for two.

    Commits of the other would be passed over.
    """
    found: dict[str, NodeStatus] = {}
    for pump in pumps:
        other = found.setdefault(pump.host, pump)
        if other is not pump:
            raise PumpUnavailableError(
                f"pumps {other.node_id} ({other.state}) and {pump.node_id} ({pump.state}) are both"
                f" registered at {pump.host}, where only one can be: start the other with its own"
                " data-dir at another address, or, once all it holds has been landed, `sluice"
                " pumps offline` for the other"
            )


def _split_range(whole: PumpRange, size: int) -> list[PumpRange]:
    """Cut a large range into sub-ranges of equal time, so that Spark can read them side by side."""
    count = min(_MAX_SPLITS, size // _SPLIT_BYTES)
    if count < 2 or whole.lo == 0:
        return [whole]
    edges = [whole.lo + (whole.hi - whole.lo) * i // count for i in range(count + 1)]
    return [PumpRange(whole.host, lo, hi) for lo, hi in itertools.pairwise(edges) if lo < hi]

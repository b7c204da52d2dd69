"""Plan windows: how far the next one may reach without missing a commit.

1. A fresh timestamp from PD.
2. The pumps in the registry; all that are not offline count.
3. Each of them is asked for its bounds, and what is in the window if that is little; those that
   counted the last time while the registry answers.
4. hi = the smallest of the timestamp and every pump's hi.

One of the pumps asks PD whether it has given the timestamp, so that one of a PD that isn't theirs
ends in an error. The others learn of it from the request, and needn't if they have nothing in the
window: then they don't move their marks either.

Of pumps that capture the cluster from TiKV one is asked for each share of the tables, since the
others are its replicas (see `_captured_source`).

The order matters. TiDB asks PD for a commit timestamp only after a pump has acknowledged the
Prewrite, and a pump is in the registry before it takes writes: so a commit at or below the fresh
timestamp can only be on a pump that is listed, and its Prewrite is there already.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sluice.errors import SluiceError
from sluice.etl.landing._captured_source import STALLED_TSO, CapturedShares
from sluice.etl.landing._commit_notifier import CommitNotifier
from sluice.etl.landing._counted_pumps import FAKE_BINLOG_INTERVAL, PumpMembership
from sluice.etl.landing._late import LateCommitCheck
from sluice.etl.landing._pump_bounds import BoundsRequest, PumpBounds, collect
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
    from sluice.tidb import TLS, NodeStatus, WindowBounds

_COMMIT_WAIT_TIMEOUT_MS = 5_000
_SWITCH_CHECK_INTERVAL_S = 1.0
"""How often capturing pumps are asked while binlogs are read; such a question takes 0.1 s."""
_SPLIT_BYTES = 8 * 2**20
_MAX_SPLITS = 4

_PumpKey = tuple[str, str, str]

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
    """Plan windows over the pumps of a cluster. Thread-safe."""

    def __init__(  # noqa: PLR0913 the sources of a plan, and the relay log
        self,
        cluster_id: int,
        limits: WindowSettings,
        tso: Callable[[], int],
        pumps: Callable[[], Sequence[NodeStatus]],
        tls: TLS | None = None,
        relay: RelayLog | None = None,
    ) -> None:
        """Create the window planner.

        `tso` returns fresh timestamps, `pumps` the registry's entries.

        `tls` is for connections to pumps.

        `relay`: the log that records the pumps that counted; None to trust the registry alone.
        """
        known = relay.known_pumps if relay is not None else None
        self._counted_pumps = PumpMembership(known)
        self._late_commits = LateCommitCheck(relay)
        self._relay = relay
        self._cluster_id = cluster_id
        self._limits = limits
        self._tso = tso
        self._pumps = pumps
        self._asking = PumpBounds(cluster_id, limits, tls)
        self._source = CapturedShares(known)
        self._switch_due = 0.0
        self._notifier = CommitNotifier(_COMMIT_WAIT_TIMEOUT_MS)
        self._notified = False
        self._counted: list[NodeStatus] = []
        self._turn = threading.Lock()
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
        early = [pump for pump in self._counted if pump.host in self._asking.readers]
        # The first one asks PD whether it has given the timestamp; the others need not, if they
        # have nothing.
        asked = {
            _pump_key(pump): self._asking.request(
                pump, lo, fresh_ts, ts_is_checked=pump is not early[0]
            )
            for pump in early
        }
        try:
            registered = self._pumps()
            answers = self._captured_answers(registered, lo, fresh_ts, asked)
        except BaseException:
            collect(asked.values())
            raise
        is_captured = answers is not None
        if answers is None:
            answers = self._binlog_answers(registered, lo, fresh_ts, early, asked)
        if answers is None:
            return None
        bounds = [bound for _, bound in answers]
        slowest, bound = min(answers, key=lambda pair: pair[1].hi)
        hi = min(fresh_ts, bound.hi)
        slack = FAKE_BINLOG_INTERVAL if slowest.host in self._asking.followers else 0
        if is_captured:
            slack = STALLED_TSO
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
        size = sum(bound.bytes for bound in bounds)
        cut = [
            _split_range(
                PumpRange(pump.host, lo, hi, bound.window, pump.captured_share),
                size if is_captured else bound.bytes,
            )
            for pump, bound in answers
            if bound.transactions
        ]
        if is_captured:  # the shares of a transaction are joined, so all are cut alike
            ranges = [replace(first, others=tuple(others)) for first, *others in zip(*cut)]
        else:
            ranges = list(itertools.chain.from_iterable(cut))
        limited = any(bound.hi < bound.max_commit_ts for bound in bounds)
        return WindowPlan(
            lo,
            hi,
            fresh_ts,
            tuple(ranges),
            transactions,
            size,
            limited,
        )

    def _captured_answers(
        self,
        registered: Sequence[NodeStatus],
        lo: int,
        fresh_ts: int,
        asked: Mapping[_PumpKey, BoundsRequest],
    ) -> list[tuple[NodeStatus, WindowBounds]] | None:
        """Return the answers of the pumps whose captured changes are read; None to read binlogs.

        While there are pumps with binlogs, they are read until a capturing pump has what comes
        next and is near the present: a commit ts is the same in both. There is no way back, for
        TiDB may have stopped to write binlogs since.
        """
        listed = [pump for pump in registered if pump.state != "offline"]
        captured = [pump for pump in listed if self._is_captured(pump)]
        is_only = self._counted_pumps.are_captured() or (
            bool(captured) and len(captured) == len(listed)
        )
        if not is_only:
            if not captured or time.monotonic() < self._switch_due or not self._is_landed(lo):
                return None
            self._switch_due = time.monotonic() + _SWITCH_CHECK_INTERVAL_S
        self._asking.keep_only(pump.host for pump in listed)
        ids = {pump.node_id for pump in captured}
        collect(question for (node_id, *_), question in asked.items() if node_id not in ids)
        try:
            answers = self._source.choose(
                captured,
                lo,
                fresh_ts,
                lambda pump: asked.get(_pump_key(pump)) or self._asking.request(pump, lo, fresh_ts),
                self._asking.digest,
            )
        except SluiceError:
            if not is_only:
                return None
            raise
        reach = min(answer.bounds.max_commit_ts for answer in answers)
        if not is_only and reach < max(fresh_ts - STALLED_TSO, lo + 1):
            return None
        self._counted_pumps.record(captured, are_captured=True)
        self._counted = [answer.pump for answer in answers]
        return list(answers)

    def _is_landed(self, lo: int) -> bool:
        """Return whether no window of binlogs is under way in front of `lo` (TSO).

        It might fail, and be wanted again from pumps that began behind it.
        """
        last = self._relay.last() if self._relay is not None else None
        return last.hi >= lo if last is not None else not self._counted_pumps.has_counted()

    def _is_captured(self, pump: NodeStatus) -> bool:
        return pump.captured_cluster_id == self._cluster_id

    def _binlog_answers(
        self,
        registered: Sequence[NodeStatus],
        lo: int,
        fresh_ts: int,
        early: Sequence[NodeStatus],
        asked: dict[_PumpKey, BoundsRequest],
    ) -> list[tuple[NodeStatus, WindowBounds]] | None:
        """Return the answers of all pumps that count; None if no window can be planned yet."""
        try:
            counting = self._counting(registered, lo)
        except BaseException:
            collect(asked.values())
            raise
        hosts = {pump.host for pump in registered if pump.state != "offline"}
        self._asking.keep_only(hosts)
        counted = {_pump_key(pump) for pump in counting}
        is_checked = bool(early) and _pump_key(early[0]) in counted
        if not is_checked or not counted <= asked.keys():
            # A new pump may have the same address. The answers of pumps that are gone are not
            # needed.
            collect(question for (_, host, _), question in asked.items() if host in hosts)
        if not is_checked:
            asked.clear()
        questions = [
            asked.get(_pump_key(pump)) or self._asking.request(pump, lo, fresh_ts)
            for pump in counting
        ]
        self._counted = counting
        failures = [
            failure for question in questions if (failure := question.failure()) is not None
        ]
        if failures:
            raise failures[0]
        bounds = [question.answer() for question in questions]
        followers, readers = self._asking.followers, self._asking.readers
        # an original pump in its place, which checks nothing
        if is_checked and early[0].host in followers:
            return None
        for pump, bound in zip(counting, bounds):
            if self._counted_pumps.is_new(pump.node_id) and pump.host in readers:
                if bound.max_commit_ts < lo:
                    return None  # it can't be asked yet what it holds
                self._check_new_pump(pump, lo)
        self._counted_pumps.record(counting, followers)
        for pump, bound in zip(counting, bounds):
            self._late_commits.check(pump.node_id, bound.late)
        return list(zip(counting, bounds))

    def _check_new_pump(self, pump: NodeStatus, lo: int) -> None:
        from sluice.tidb import PumpReadError

        try:
            self._late_commits.check_new_pump(pump.node_id, self._asking.readers[pump.host], lo)
        except PumpReadError as error:
            raise self._asking.read_error(pump, lo, error) from error

    def invalidate(self) -> None:
        """Drop what was read from the relay log: another process may have landed since."""
        self._counted_pumps.invalidate()

    def _counting(self, listed: Sequence[NodeStatus], lo: int) -> list[NodeStatus]:
        """Return the pumps of the registry that count now, if binlogs are read.

        Raises PumpUnavailableError if there is none, or if one is missing, and UnreadPumpError.
        """
        registered = [pump for pump in listed if not self._is_captured(pump)]
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
            asking, hosts = self._asking, [pump.host for pump in self._counted]
            readers = [asking.readers[host] for host in hosts if host in asking.readers]
            readers = [] if asking.followers else readers
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
        self._asking.close()


def _pump_key(pump: NodeStatus) -> _PumpKey:
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
    return [
        replace(whole, lo=lo, hi=hi, window=b"") for lo, hi in itertools.pairwise(edges) if lo < hi
    ]

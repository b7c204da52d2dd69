"""Archive the relay log segment by segment, in order, through Spark's workers.

Each archiver continues at the end of the archive's chain, by compare-and-set. So a second process,
or one that stood still and wakes up, can at most leave files that the catalogue doesn't name. By
the claim, a pass that was taken over from notices soon. A caller that needs a moment of the past
works beside the passes: without the claim, and in a Spark session of its own, so that the passes'
go on undisturbed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterator

from sluice.errors import ours
from sluice.etl.history.archive._pending import PendingSegments, remove_abandoned
from sluice.etl.history.archive._segment_queue import (
    BuiltSegment,
    SegmentBuilder,
    SegmentQueue,
    SparkSegmentBuilder,
)
from sluice.etl.history.archive.plan import MAX_PLAN_BYTES, plan_segments
from sluice.etl.history.archive.report import (
    ArchiveProgressLog,
    ArchiveSummary,
    OnSegment,
    Stop,
    ms_since,
    never_stop,
    wait,
)
from sluice.etl.history.archive.worker import BuildSegments
from sluice.etl.history.errors import ArchiveGapError, NotYetLandedError, OtherClusterError
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings import Settings
from sluice.etl.spark.session_target import BATCH, SessionTarget
from sluice.relay import ClaimLostError, RelayError, RoleClaim, WindowRecord
from sluice.relay.archive import Archive, ArchiveConflictError, sync_overrides
from sluice.relay.consumers import Consumers
from sluice.relay.role_lease import RoleStandby
from sluice.tidb import tso

__all__ = ["CONSUMER", "QUIET_MS", "Archiver", "archive_through"]

log = logging.getLogger("sluice.archive")

CONSUMER = ROLE = "archive"
"""The archive's name among the relay log's consumers: the relay log removes nothing that isn't
archived.
"""
QUIET_MS = 600_000
"""Windows without changes are archived at the latest when they span this much of the upstream's
time.
"""
_PEER_TIMEOUT_S = 120.0
"""Time allowed to another archiver for one segment."""
_MAX_MISSED_PASSES = 3
"""Number of passes that another pipeline's archiver may miss."""
_PEER_TIMEOUT_BESIDE_S = 20.0
"""The same for a caller that needs a moment: after it, the caller makes the segment itself, too."""
_CHECK_INTERVAL_S = 0.5


def archive_through(
    settings: Settings,
    until_ts: int | None = None,
    *,
    stop: Stop = never_stop,
    on_segment: OnSegment | None = None,
    jobs: SegmentBuilder | None = None,
) -> ArchiveSummary:
    """Archive what is landed and not archived yet, at least through `until_ts`.

    `until_ts` is a TSO; None: all that is landed now. For callers that need a moment of the past:
    cheap when there is nothing to do, and no running pass is disturbed. `jobs`: where segments are
    made, by default on Spark.

    Transient errors (Spark or the disk is away) are logged and retried until `stop` is true;
    another process that was faster is waited for while it advances. Raises NotYetLandedError,
    ArchiveGapError, OtherClusterError, relay errors, SparkError.
    """
    with contextlib.closing(Archiver.without_claim(settings, stop, on_segment, jobs)) as archiver:
        archiver.through(until_ts)
        return archiver.summary


class Archiver:
    """Archive pass by pass, with one warm Spark session. `close` when done."""

    def __init__(
        self,
        settings: Settings,
        *,
        stop: Stop = never_stop,
        on_segment: OnSegment | None = None,
        jobs: SegmentBuilder | None = None,
        segment_bytes: int = MAX_PLAN_BYTES,
    ) -> None:
        """Prepare to archive, taking over from other processes.

        `jobs`: where segments are made, by default on Spark. `segment_bytes`: see `plan_segments`.
        """
        self._is_beside = False
        self._stop = stop
        self._on_segment = on_segment
        self._relay = settings.open_relay()
        self._archive = Archive.open(settings.archive_url)
        self._attempts = PendingSegments(self._archive.storage)
        self._consumers = Consumers(self._relay)
        work = BuildSegments.from_settings(settings, settings.relay.url)
        self._queue = SegmentQueue(
            jobs or _on_spark(settings, settings.spark_role(ROLE)),
            work,
            settings.archive.worker_count,
        )
        self._segment_bytes = segment_bytes
        self._claim: RoleClaim | None = None
        self._standby = RoleStandby(self._relay, CONSUMER, self._end, log)
        self._peer_timeout_s = max(
            _PEER_TIMEOUT_S, _MAX_MISSED_PASSES * settings.archive.every_ms / 1000
        )
        self._cluster_id: int | None = None
        self._other: tuple[int | None, float] | None = None
        """End of the archive (TSO) when another process last advanced it, and the time of that.
        """
        self._waiting = RetryBackoff(log, "archiving")
        self._progress = ArchiveProgressLog()
        self.summary = ArchiveSummary()

    @classmethod
    def without_claim(
        cls,
        settings: Settings,
        stop: Stop,
        on_segment: OnSegment | None,
        jobs: SegmentBuilder | None,
    ) -> Archiver:
        """Make an archiver that doesn't disturb other processes' passes.

        It works without the claim, and in a Spark session of its own.
        """
        jobs = jobs or _on_spark(settings, BATCH)
        archiver = cls(settings, stop=stop, on_segment=on_segment, jobs=jobs)
        archiver._is_beside = True
        return archiver

    def through(self, until_ts: int | None = None, *, quiet_ms: int = 0) -> None:
        """Archive as `archive_through`.

        With `quiet_ms` windows in which nothing happened may wait until they span so much.
        """
        goal = until_ts
        checked = False
        more = True
        while more and not self._stop():
            try:
                if not checked:
                    self._sync_overrides()
                end = self._end()
                if not checked and (goal is None or end is None or end < goal):
                    goal = self._goal(until_ts)
                checked = True
                more = (
                    goal is not None
                    and (end is None or end < goal)
                    and self._step(end, goal, quiet_ms)
                )
                self._waiting.over()
            except Exception as error:
                self._recover(error)
        self._progress.say(last=True)
        with contextlib.suppress(RelayError, OSError):  # the next pass does it
            remove_abandoned(self._archive, self._stop)

    def age_s(self) -> float:
        """Return the seconds since anything was archived, by this machine's clock.

        0 if nothing ever was. Raises relay errors, OSError.
        """
        last = self._archive.last()
        return time.time() - last.archived_ms / 1000 if last is not None else 0.0

    def close(self) -> None:
        """Close the Spark session; running jobs are given up."""
        self._queue.close()

    def _sync_overrides(self) -> None:
        for each in self._relay.all_pipelines():
            sync_overrides(each.overrides, self._archive.overrides_of(each.pipeline))

    def _goal(self, until_ts: int | None) -> int | None:
        """Through where windows are to be archived; None if nothing is landed."""
        last = self._relay.last()
        if until_ts is None:
            return last.hi if last is not None else None
        if last is None or last.hi < until_ts:
            landed = (
                f"landing has come to {tso.text(last.hi)}"
                if last is not None
                else "nothing is landed yet"
            )
            raise NotYetLandedError(
                f"{tso.text(until_ts)} isn't in {self._relay.url} yet: {landed}"
            )
        return until_ts

    def _end(self) -> int | None:
        """Through where the archive goes; None if it is empty."""
        last = self._archive.last()
        if last is None:
            return None
        self.summary.hi = last.hi
        self._cluster_id = last.cluster_id
        return last.hi

    def _step(self, end: int | None, goal: int, quiet_ms: int) -> bool:
        """Archive windows behind `end`, through `goal`; return whether there may be more."""
        if self._is_another_at_work(end) or not (
            self._is_beside or self._standby.should_claim(self._peer_timeout_s)
        ):
            wait(_CHECK_INTERVAL_S, self._stop)
            return True
        plans = plan_segments(self._windows(end, goal), self._segment_bytes)
        first = next(plans, None)
        if first is None or (first.is_quiet and tso.ms_between(first.lo, first.hi) < quiet_ms):
            return False
        claim = self._with_claim()
        waiting = itertools.chain([first], plans)
        while not self._stop():
            self._queue.submit(waiting, lambda plan: self._attempts.begin(plan.lo, plan.hi))
            made = self._queue.take()
            if made is None:
                return True
            self._append(made, claim)
        self._queue.abandon()
        return False

    def _windows(self, end: int | None, goal: int) -> Iterator[WindowRecord]:
        """Yield the landed windows behind `end` with commits through `goal`, without a gap."""
        if end is None:
            end = self._beginning()
        for window in self._relay.windows(end, goal):
            if window.lo != end:
                raise ArchiveGapError(
                    f"{self._archive.url} ends at {tso.text(end)}, but the first window behind it"
                    f" in {self._relay.url} begins at {tso.text(window.lo)}"
                )
            if self._cluster_id not in (None, window.cluster_id):
                raise OtherClusterError(
                    f"{self._archive.url} keeps the past of cluster {self._cluster_id};"
                    f" {self._relay.url} has windows of cluster {window.cluster_id}"
                )
            yield window
            end = window.hi

    def _beginning(self) -> int:
        """Return where a new archive begins: at the oldest window that stays."""
        begin = 0
        # Windows may go before the archive is among the relay log's consumers; none does
        # afterwards.
        for _ in range(2):
            first = self._relay.first()
            assert first is not None  # the newest is never purged
            begin = first.lo
            self._note(begin)
        return begin

    def _with_claim(self) -> RoleClaim | None:
        """Return the claim, if no process has taken it over; None beside others."""
        if self._is_beside:
            return None
        if self._claim is None:
            self._claim = self._relay.claim(CONSUMER)
            log.info("archiving into %s as %s", self._archive.url, self._claim.token)
        self._claim.check()
        return self._claim

    def _append(self, made: BuiltSegment, claim: RoleClaim | None) -> None:
        """Add a segment to the catalogue; from then on it is archived."""
        began = time.perf_counter()
        if claim is not None:
            claim.check()
        self._archive.append(made.segment)
        self._attempts.over(made.segment.token)
        self._note(made.segment.hi)
        segment = made.report(ms_since(began))
        self.summary.add(segment)
        self._progress.add(segment)
        self._progress.say()
        if self._on_segment is not None:
            self._on_segment(segment)

    def _note(self, ts: int) -> None:
        self._consumers.note(CONSUMER, ts, f"the archive {self._archive.url}")

    # Trouble, and other archivers

    def _recover(self, error: Exception) -> None:
        """Wait before another attempt; raises what doesn't pass."""
        failure = ours(error)
        self._queue.abandon(failure)
        if isinstance(failure, ClaimLostError):
            log.info("waiting for another process that archives: %s", failure)
            self._claim = None
            self._other = (self.summary.hi or None, time.monotonic())
            return
        if isinstance(failure, ArchiveConflictError):
            log.info("another process was faster: %s", failure)
            if self._is_beside:
                self._other = (self.summary.hi or None, time.monotonic())
            wait(_CHECK_INTERVAL_S, self._stop)
            return
        if not failure.transient:
            raise error
        self.summary.retries += 1
        wait(self._waiting.after(failure, f"at {self.summary.hi}"), self._stop)

    def _is_another_at_work(self, end: int | None) -> bool:
        """Return whether the process that has taken the claim over, or was faster, gets on."""
        if self._other is None:
            return False
        now = time.monotonic()
        at, since = self._other
        if at != end:
            self._other = (end, now)
        elif now - since > (_PEER_TIMEOUT_BESIDE_S if self._is_beside else _PEER_TIMEOUT_S):
            self._other = None
        return self._other is not None


def _on_spark(settings: Settings, role: str) -> SparkSegmentBuilder:
    work = BuildSegments.from_settings(settings, settings.relay.url)
    place = SessionTarget(
        settings.spark.for_batch(), role, settings.relay.url, (settings.archive_url,)
    )
    return SparkSegmentBuilder(place, work)

"""Queue the running landing jobs: one, or two during a backlog, so that Spark never idles.

They are popped in order.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial

from sluice.etl.changes.masks.landed_rows import MaskOrder
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing._cluster import UpstreamCluster
from sluice.etl.landing._control import RunLimits
from sluice.etl.landing._job import JobResult, LandingJob
from sluice.etl.landing._report import LandedWindow, ms_since
from sluice.etl.landing.extract import STATS_SCHEMA, TASK_SCHEMA, WITHOUT_VALUES, LandRanges
from sluice.etl.landing.planner import WindowPlan, WindowPlanner
from sluice.etl.landing.upstream_schema import PendingVersion
from sluice.etl.settings import Window
from sluice.etl.spark.resilient_function import ResilientFunction
from sluice.etl.spark.session_target import SessionTarget
from sluice.relay import RelayLog, WindowRecord
from sluice.tidb import TiKVError, read_schema_version, tso
from sluice.tidb.tikv.meta import begin_schema_version

_JOB_TIMEOUT_S = 300.0
_CONNECT_TIMEOUT_S = 10.0
_WARM_UP_TIMEOUT_S = 60.0
_MAX_RUNNING_JOBS = 2
_ABANDON_TIMEOUT_S = 20.0
_COST_WEIGHT = 0.1
"""Weight of the last window's CPU time in the average of all."""


MasksAt = Callable[[PendingVersion], MaskOrder | None]
"""Return what is masked of the rows of a window that ends at a schema version.

None if that isn't known before the window's DDL is.
"""


@dataclass(frozen=True, slots=True)
class FinishedPlan:
    """A window whose parts are written and that no record names yet.

    `stages_ms`: plan, and job until its result was popped. `version`: that of the plan's hi; None
    for a window without rows.
    """

    plan: WindowPlan
    result: JobResult
    stages_ms: dict[str, float]
    version: PendingVersion | None
    masks: MaskOrder | None = None
    """What was masked of its rows; None: nothing, or there are no values in its parts."""


@dataclass(frozen=True, slots=True)
class _RunningJob:
    """A job that is running, or that `result` runs.

    `began`: on the clock of time.perf_counter. `future`: None if the popping thread runs the job
    itself. Nothing else is to start then, so no other thread need be woken.
    """

    plan: WindowPlan
    stages_ms: dict[str, float]
    began: float
    work: Callable[[], JobResult]
    future: Future[JobResult] | None
    version: PendingVersion | None
    masks: MaskOrder | None

    def result(self) -> JobResult:
        """Wait for the result. Raises as LandingJob.run."""
        return self.work() if self.future is None else self.future.result()


class WindowPace:
    """Decide how soon a window may follow the one before, by what windows cost this process."""

    def __init__(self, window: Window, process_s: Callable[[], float] = time.process_time) -> None:
        """`process_s` returns the CPU seconds that this process has used so far."""
        self._longest_s = window.interval_ms / 1000
        self._share = window.cpu_percent / 100
        self._process_s = process_s
        self._used_s = process_s()
        self._cost_s = self._longest_s * self._share  # the longest interval until it is known

    def next_interval_s(self) -> float:
        """Return how many seconds after a window's beginning the next one may begin.

        To be called once a window.
        """
        used_s = self._process_s()
        cost_s, self._used_s = used_s - self._used_s, used_s
        if not self._share:
            return self._longest_s
        # One window with much in it says little of the next ones: an average, and a bound.
        most_s = 2 * self._longest_s * self._share
        self._cost_s += _COST_WEIGHT * (min(cost_s, most_s) - self._cost_s)
        return min(self._longest_s, self._cost_s / self._share)


class LandingJobs:
    """Plan windows and run Spark jobs that write their parts."""

    def __init__(
        self,
        place: SessionTarget,
        cluster: UpstreamCluster,
        window: Window,
        limits: RunLimits,
        relay: RelayLog,
    ) -> None:
        """Connect nothing yet.

        `place`: a session on the relay log `relay`. `window`: the limits of one window.
        """
        self._place = place
        self._cluster = cluster
        self._relay = relay
        self._window = window
        self._limits = limits
        self._threads = ThreadPoolExecutor(_MAX_RUNNING_JOBS, thread_name_prefix="landing-job")
        self._version_threads = ThreadPoolExecutor(
            _MAX_RUNNING_JOBS, thread_name_prefix="landing-version"
        )
        self._running: deque[_RunningJob] = deque()
        self._planner: WindowPlanner | None = None
        self._function: ResilientFunction | None = None
        self._is_warm = False
        self._started_count = 0
        self._due = 0.0
        self._pace = WindowPace(window)

    @property
    def limiting_pump(self) -> str:
        """Return the pump that holds the next window back; "" if none does."""
        return self._planner.limiting_pump if self._planner is not None else ""

    @property
    def seen_ts(self) -> int:
        """Return PD's clock (TSO), extrapolated from the last plan; 0 before the first."""
        return self._planner.seen_ts if self._planner is not None else 0

    def connect(self, lo: int, check: Callable[[], None]) -> None:
        """Open a Spark session, warmed up before the first job.

        Connecting interrupts the jobs of a process that took over, so `check` is called before.
        Raises SparkUnavailableError, and what the registry and `check` raise.
        """
        if self._function is None:
            place, cluster = self._place, self._cluster
            work = LandRanges(place.url, cluster.id, cluster.tls)
            self._function = ResilientFunction(place, work, (TASK_SCHEMA, STATS_SCHEMA))
        self._function.connect(_CONNECT_TIMEOUT_S, check)
        if not self._is_warm:
            self._is_warm = True
            pumps = self._cluster.pumps_that_count()
            LandingJob(self._function).warm_up(pumps, lo, _WARM_UP_TIMEOUT_S)

    def submit(
        self,
        lo: int,
        token: str,
        skips: Callable[[], Collection[int]],
        *,
        empty_now: bool,
        masks_at: MasksAt | None = None,
    ) -> None:
        """Start a job for the window after `lo` (TSO), and one for the next if more is waiting.

        `token` is the claim's. `skips` returns the commit_ts of transactions that may be excluded.
        `empty_now`: land an empty window, too. `masks_at`: None if nothing is masked. A window for
        which it returns None gets parts without values. Raises as WindowPlanner.plan.
        """
        assert self._function is not None
        planner, job = self._need_planner(), LandingJob(self._function)
        if not self._running and self._limits.wait(self._due - time.monotonic(), lo):
            return
        while len(self._running) < _MAX_RUNNING_JOBS:
            if self._running:
                before = self._running[-1].plan
                if not before.limited or self._limits.is_reached(before.hi):
                    return
                lo = before.hi
            began = time.perf_counter()
            try:
                plan = planner.plan(lo, empty_now=empty_now and not self._running)
            except Exception:
                # commit the running ones first; a lasting error is raised by the next call
                if self._running:
                    return
                raise
            if plan is None:
                return
            interval_s = self._pace.next_interval_s()
            self._due = 0.0 if plan.limited else time.monotonic() + interval_s
            stages = {"plan": ms_since(began)}
            self._started_count += 1
            began = time.perf_counter()
            alone = not self._running
            version = self._read_version(plan)
            masks = masks_at(version) if masks_at is not None and version is not None else None
            work = partial(
                job.run,
                plan,
                f"{token}.{self._started_count}",
                _JOB_TIMEOUT_S,
                skips(),
                alone=alone,
                masks="" if masks_at is None else _text_of(masks),
            )
            future = self._threads.submit(work) if plan.limited or not alone else None
            self._running.append(_RunningJob(plan, stages, began, work, future, version, masks))

    def run_again(
        self, landed: FinishedPlan, token: str, skips: Collection[int], masks: MaskOrder | None
    ) -> FinishedPlan:
        """Land a popped window once more with other masks, and remove its parts.

        `masks`: None for parts without values. Raises as LandingJob.run.
        """
        assert self._function is not None
        self._started_count += 1
        began = time.perf_counter()
        result = LandingJob(self._function).run(
            landed.plan,
            f"{token}.{self._started_count}",
            _JOB_TIMEOUT_S,
            skips,
            alone=not self._running,
            masks=_text_of(masks),
        )
        for part in landed.result.parts:
            self._relay.storage.remove(part.path)
        landed.stages_ms["job"] += ms_since(began)
        return replace(landed, result=result, masks=masks)

    def pop(self) -> FinishedPlan | None:
        """Wait for the first job and return its result; None if none is running.

        Raises as LandingJob.run.
        """
        if not self._running:
            return None
        running = self._running[0]
        result = running.result()
        self._running.popleft()
        return FinishedPlan(
            running.plan,
            result,
            running.stages_ms | {"job": ms_since(running.began)},
            running.version,
            running.masks,
        )

    def wait_for_commits(self, lo: int, seconds: float) -> bool:
        """Wait at most `seconds`; return whether there may be a window after `lo` (TSO)."""
        return self._need_planner().wait_for_commits(lo, seconds)

    def abandon(self) -> None:
        """Stop the running jobs. No record will name the parts that they have written."""
        if self._running and self._function is not None:
            with contextlib.suppress(Exception):
                self._function.interrupt()
            wait(
                [running.future for running in self._running if running.future],
                timeout=_ABANDON_TIMEOUT_S,
            )
        self._running.clear()
        if self._planner is not None:
            self._planner.invalidate()

    def close(self) -> None:
        """Close threads and connections, after `abandon`."""
        for threads in (self._threads, self._version_threads):
            threads.shutdown(wait=False, cancel_futures=True)
        if self._planner is not None:
            self._planner.close()
        if self._function is not None:
            self._function.close()

    def _read_version(self, plan: WindowPlan) -> PendingVersion | None:
        """Begin to read the schema version of a window's end, so that its commit needn't wait."""
        if not plan.ranges:
            return None
        tikv = self._cluster.tikv
        begun = begin_schema_version(tikv, plan.hi)
        if begun is None:
            begun = self._version_threads.submit(read_schema_version, tikv, plan.hi).result
        return PendingVersion(plan.hi, _once(begun))

    def _need_planner(self) -> WindowPlanner:
        if self._planner is None:
            cluster = self._cluster
            self._planner = WindowPlanner(
                cluster.id,
                self._window,
                cluster.pd.tso,
                cluster.pumps,
                cluster.tls,
                self._relay,
            )
        return self._planner


def _once(read: Callable[[], int]) -> Callable[[], int]:
    """Return a function that reads once, and from then on returns or raises what that did."""
    kept: list[int | TiKVError] = []

    def result() -> int:
        if not kept:
            try:
                kept.append(read())
            except TiKVError as error:
                kept.append(error)
        if isinstance(kept[0], TiKVError):
            raise kept[0]
        return kept[0]

    return result


def _text_of(masks: MaskOrder | None) -> str:
    return WITHOUT_VALUES if masks is None else masks.text


def record_of(
    landed: FinishedPlan, schema: RecordedSchema, cluster_id: int, token: str
) -> WindowRecord:
    """Return the record to commit; `token` is the claim's."""
    plan, result = landed.plan, landed.result
    window = WindowRecord(
        lo=plan.lo,
        hi=plan.hi,
        cluster_id=cluster_id,
        token=token,
        landed_ms=time.time_ns() // 1_000_000,
        transactions=result.transactions,
        changes=sum(part.rows for part in result.parts),
        schema_version=schema.schema_version,
        parts=result.parts,
        timings_ms={name: round(ms, 2) for name, ms in landed.stages_ms.items()},
        skipped=result.left_out,
        is_captured=result.is_captured,
    )
    return schema.write_to(window)


def report_of(landed: FinishedPlan, record: WindowRecord) -> LandedWindow:
    """Return the figures of a committed window."""
    plan, stages = landed.plan, landed.stages_ms
    lag_ms = tso.ms_between(plan.hi, plan.fresh_ts) + sum(
        stages[name] for name in ("job", "resolve", "commit")
    )
    return LandedWindow(
        plan.lo, plan.hi, record.transactions, record.changes, len(record.ddls),
        sum(part.bytes for part in record.parts), stages, lag_ms,
    )  # fmt: skip

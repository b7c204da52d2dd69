"""The landing loop: window by window from the pumps into the relay log.

Each window is planned, read and written by one Spark job, given the schemas and DDL it needs, and then committed by its
record. Whoever commits continues at the end of the chain of records, so a second process, or a job that a killed one
left behind, can at most leave parts that no record names.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from etl.downstream import Checkpoint, DownstreamError
from etl.downstream import is_transient as is_downstream_transient
from etl.explode import BinlogDecodeError
from etl.landing._job import JobResult, LandingJob
from etl.landing._report import LandedWindow, LandSummary, Progress
from etl.landing.planner import CommitsPurgedError, Plan, Planner, PumpUnavailableError, UpstreamBehindError
from etl.landing.schema import LandingSchema, Stopped, UnknownTableError, version_at
from etl.landing.start import NoCheckpointError, without_checkpoint
from etl.ownership import DrainerEntry
from etl.settings import Settings
from etl.sinks import read_checkpoint
from etl.spark import session as spark_session
from etl.spark.job import WorkerError
from relay import SKIP, Claim, RelayLog, Window, WindowConflictError
from upstream import (
    EtcdClient,
    EtcdError,
    PDClient,
    PDError,
    PumpReadError,
    Registry,
    RegistryError,
    TiKVClient,
    TiKVError,
    tso,
)

__all__ = [
    "BinlogDecodeError",
    "CommitsPurgedError",
    "LandSummary",
    "LandedWindow",
    "NoCheckpointError",
    "UnknownTableError",
    "WrongClusterError",
    "run_land",
]

log = logging.getLogger("sluice.land")

_JOB_TIMEOUT_S = 300.0
_WARM_UP_S = 60.0
_CONTROL_INTERVAL_S = 0.5
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_UNKNOWN_RETRIES = 3
_JOBS_AT_ONCE = 2
_ABANDON_S = 20.0
_CLEAN_BACK = tso.span(600_000)
_TRANSIENT = (
    PumpUnavailableError,
    UpstreamBehindError,
    PumpReadError,
    PDError,
    TiKVError,
    EtcdError,
    RegistryError,
    OSError,
)
_TRANSIENT_IN_WORKER = {
    "PumpReadError",
    "OSError",
    "ConnectionError",
    "ConnectionResetError",
    "BrokenPipeError",
    "TimeoutError",
    "EOFError",
    "FileExistsError",
    "FileNotFoundError",
}

Stop = threading.Event | Callable[[], bool]


def run_land(
    settings: Settings,
    *,
    run_seconds: float | None = None,
    stop: Stop | None = None,
    until_ts: int | None = None,
    start_ts: int | None = None,
    on_window: Callable[[LandedWindow], None] | None = None,
) -> LandSummary:
    """Land windows until `run_seconds` are over, `stop` says so, or everything through `until_ts` (TSO) is landed.

    It continues where the relay log ends. An empty one begins at `start_ts`; without it at the downstream's checkpoint,
    and without that at the settings' initial-commit-ts (0 everything the pumps have, -1 now). While the relay log's
    control says paused, it waits. What may pass (a pump, PD, TiKV, Spark or the disk is away) is logged and tried
    again.

    Raises ClaimLostError when another process took over, BinlogDecodeError, UnknownTableError, CommitsPurgedError,
    WrongClusterError, NoCheckpointError, HistoryError, and relay errors.
    """
    loop = _Loop(settings, run_seconds, stop, until_ts, start_ts, on_window)
    try:
        return loop.run()
    finally:
        loop.close()


@dataclass(frozen=True, slots=True)
class _Running:
    """A landing job under way; `began` on the clock of time.perf_counter."""

    plan: Plan
    stages: dict[str, float]
    began: float
    result: Future[JobResult]


class _Loop:
    def __init__(
        self,
        settings: Settings,
        run_seconds: float | None,
        stop: Stop | None,
        until_ts: int | None,
        start_ts: int | None,
        on_window: Callable[[LandedWindow], None] | None,
    ) -> None:
        self._settings = settings
        self._end = None if run_seconds is None else time.monotonic() + run_seconds
        self._stop = stop.is_set if isinstance(stop, threading.Event) else stop or (lambda: False)
        self._until_ts = until_ts
        self._start_ts = start_ts
        self._on_window = on_window
        self._relay = RelayLog.open(settings.relay.url)
        self._tls = settings.upstream.tls()
        self._pd = PDClient(settings.upstream.pd_urls, tls=self._tls)
        self._tikv = TiKVClient(self._pd, tls=self._tls)
        self._etcd = EtcdClient(settings.upstream.pd_urls, tls=self._tls)
        self._threads = ThreadPoolExecutor(_JOBS_AT_ONCE, thread_name_prefix="landing-job")
        self._running: deque[_Running] = deque()
        self._planner: Planner | None = None
        self._claim: Claim | None = None
        self._spark: Any = None
        self._job: LandingJob | None = None
        self._schema: LandingSchema | None = None
        self._entry: DrainerEntry | None = None
        self._lo: int | None = None
        self._start_version: int | None = None
        self._anchored = False
        self._jobs_run = 0
        self._paused = False
        self._control_read = 0.0
        self._decisions_due = 0.0
        self._skipped: frozenset[int] = frozenset()
        self.summary = LandSummary()
        self._progress = Progress()

    def run(self) -> LandSummary:
        failures = 0
        unknown = 0
        self._claim = None
        while not self._over():
            try:
                self._step()
                failures = unknown = 0
            except Stopped:
                break
            except Exception as error:
                kind = _judge(error)
                unknown = unknown + 1 if kind == "unknown" else 0
                if kind == "terminal" or unknown > _UNKNOWN_RETRIES:
                    raise
                delay = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
                failures += 1
                self.summary.retries += 1
                log.warning(
                    "landing waits %.1f s at hi=%s: %s: %s", delay, self._lo, type(error).__name__, _short(error)
                )
                self._forget(error)
                self._wait(delay)
        self._progress.say(self.summary, self._holding(), last=True)
        return self.summary

    def close(self) -> None:
        self._abandon()
        if self._entry is not None:
            self._entry.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._planner is not None:
            self._planner.close()
        if self._spark is not None:
            spark_session.close(self._spark)
        self._etcd.close()
        self._tikv.close()
        self._pd.close()

    # One step: at most one window

    def _step(self) -> None:
        if self._claim is None:
            self._claim = self._relay.claim("land")
            log.info("landing into %s as %s", self._relay.url, self._claim.token)
        if self._is_paused():
            self._wait(_CONTROL_INTERVAL_S)
            return
        if self._lo is None:
            self._find_start()
            return
        if self._schema is None:
            self._load_schema()
        if self._job is None:
            self._connect()
        self._fill(self._lo)
        if not self._running:
            self._progress.say(self.summary, self._holding())
            self._wait(self._settings.window.poll_interval_ms / 1000)
            return
        running = self._running[0]
        result = running.result.result()
        self._running.popleft()
        running.stages["job"] = _ms_since(running.began)
        self._commit(running.plan, result, running.stages)

    def _fill(self, lo: int) -> None:
        """Have a job under way; while a backlog is worked off, the one after it too, so that none waits for Spark to
        get going. They are committed in order."""
        planner = self._need_planner()
        while len(self._running) < _JOBS_AT_ONCE:
            if self._running:
                before = self._running[-1].plan
                if not before.limited or (self._until_ts is not None and before.hi >= self._until_ts):
                    return
                lo = before.hi
            began = time.perf_counter()
            try:
                plan = planner.plan(lo, empty_now=not self._anchored and not self._running)
            except Exception:
                if self._running:  # first commit what is under way; if it is still wrong then, it will come up again
                    return
                raise
            if plan is None:
                return
            stages = {"plan": _ms_since(began)}
            assert self._job is not None and self._claim is not None
            self._jobs_run += 1
            token = f"{self._claim.token}.{self._jobs_run}"
            began = time.perf_counter()
            result = self._threads.submit(self._job.run, plan, token, _JOB_TIMEOUT_S, self._skips())
            self._running.append(_Running(plan, stages, began, result))

    def _skips(self) -> frozenset[int]:
        """Transactions that don't go downstream anyway; read now and then."""
        now = time.monotonic()
        if now >= self._decisions_due:
            self._decisions_due = now + _CONTROL_INTERVAL_S
            decided = self._relay.decisions.list(self._lo or 0)
            self._skipped = self._settings.ignored_ts | {
                decision.commit_ts for decision in decided if decision.action == SKIP
            }
        return self._skipped

    def _abandon(self) -> None:
        """Stop the jobs that are under way. What they have written no record will name."""
        if self._running and self._spark is not None:
            with contextlib.suppress(Exception):
                self._spark.interruptAll()
            wait([running.result for running in self._running], timeout=_ABANDON_S)
        self._running.clear()

    def _commit(self, plan: Plan, result: JobResult, stages: dict[str, float]) -> None:
        assert self._schema is not None and self._claim is not None
        began = time.perf_counter()
        schema = self._schema.resolve(result.ddls, result.tables, self._wait_or_stop, self._skips())
        stages["resolve"] = _ms_since(began)
        stages |= result.worker_ms
        stages["spark"] = stages["job"] - sum(result.worker_ms.values())
        changes = sum(part.rows for part in result.parts)
        window = Window(
            lo=plan.lo,
            hi=plan.hi,
            cluster_id=self._pd.cluster_id,
            token=self._claim.token,
            landed_ms=time.time_ns() // 1_000_000,
            transactions=result.transactions,
            changes=changes,
            schema_version=schema.schema_version,
            parts=result.parts,
            tables=schema.tables,
            ddls=schema.ddls,
            truncated_tables=schema.truncated_tables,
            timings_ms={name: round(ms, 2) for name, ms in stages.items()},
            skipped=result.left_out,
            moved=schema.moved,
            relaxed=schema.relaxed,
        )
        began = time.perf_counter()
        self._claim.check()
        self._relay.commit(window)
        stages["commit"] = _ms_since(began)
        for entry in result.left_out:
            log.warning("left out as decided, for it can't be read: commit_ts %d: %s", entry["commit_ts"], entry["why"])
        self._lo = plan.hi
        self._register(plan.hi)
        self._anchored = True
        lag_ms = tso.ms_between(plan.hi, plan.fresh_ts) + sum(stages[name] for name in ("job", "resolve", "commit"))
        landed = LandedWindow(
            plan.lo, plan.hi, result.transactions, changes, len(schema.ddls), sum(part.bytes for part in result.parts),
            stages, lag_ms,
        )  # fmt: skip
        self.summary.add(landed)
        if self._on_window is not None:
            self._on_window(landed)
        self._progress.add(landed)
        self._progress.say(self.summary, self._holding())

    # Beginning, and beginning again

    def _find_start(self) -> None:
        last = self._relay.last()
        if last is not None:
            if last.cluster_id != self._pd.cluster_id:
                raise WrongClusterError(
                    f"the relay log {self._relay.url} is of cluster {last.cluster_id}, PD at"
                    f" {self._settings.upstream.pd_urls} is of cluster {self._pd.cluster_id}; give each cluster a relay"
                    " log of its own"
                )
            self._lo, self._anchored = last.hi, True
            removed = self._relay.clean_unreferenced(since_ts=max(0, last.lo - _CLEAN_BACK))
            if removed:
                log.info("removed %d parts that belong to no window", removed)
        else:
            self._lo = self._first_ts()
        self.summary.hi = self._lo
        if self._anchored:  # else once something is landed: a position in the registry says that something was
            self._register(self._lo)
        log.info("landing from commit_ts %d on", self._lo)

    def _register(self, landed_ts: int) -> None:
        if self._entry is not None:
            self._entry.landed(landed_ts)
            return
        self._entry = DrainerEntry(self._settings, Registry(self._etcd), self._pd.tso, landed_ts)

    def _first_ts(self) -> int:
        if self._start_ts is not None:
            return self._start_ts
        checkpoint = self._downstream_checkpoint()
        if checkpoint is not None:
            self._start_version = self._version_of(checkpoint)
            return checkpoint.commit_ts
        return without_checkpoint(self._settings, self._pd.cluster_id, Registry(self._etcd).drainers, self._pd.tso)

    def _version_of(self, checkpoint: Checkpoint) -> int:
        """A Drainer's row may name an older version than that of its commit timestamp. But TiKV may have no snapshot of
        then.
        """
        try:
            return version_at(self._tikv, checkpoint.commit_ts)
        except TiKVError as error:
            if not checkpoint.schema_version:
                raise
            log.warning(
                "TiKV doesn't tell the schema version at commit_ts %d, taking the checkpoint's, %d: %s",
                checkpoint.commit_ts, checkpoint.schema_version, _short(error),
            )  # fmt: skip
            return checkpoint.schema_version

    def _downstream_checkpoint(self) -> Checkpoint | None:
        """An unreachable downstream is an error here: a relay log must not begin after what the
        downstream still needs.
        """
        return read_checkpoint(self._settings, self._pd.cluster_id)

    def _load_schema(self) -> None:
        assert self._lo is not None
        last = self._relay.last()
        if last is not None:
            version = last.schema_version
        else:
            version = self._start_version if self._start_version is not None else version_at(self._tikv, self._lo)
        began = time.perf_counter()
        self._schema = LandingSchema.load(
            self._pd,
            self._tikv,
            version,
            last.relaxed if last is not None else None,
            self._settings.upstream.new_collations,
        )
        log.info("schema version %d rebuilt from TiDB's DDL history in %.0f ms", version, _ms_since(began))

    def _connect(self) -> None:
        self._spark = spark_session.connect(self._settings, "land", timeout_s=10)
        self._job = LandingJob(self._spark, self._relay.url, self._pd.cluster_id, self._tls)
        if self._jobs_run == 0 and self._lo is not None:
            hosts = [pump.host for pump in Registry(self._etcd).pumps() if pump.state != "offline"]
            self._job.warm_up(hosts, self._lo, _WARM_UP_S)

    def _need_planner(self) -> Planner:
        if self._planner is None:
            registry = Registry(self._etcd)
            self._planner = Planner(self._pd.cluster_id, self._settings.window, self._pd.tso, registry.pumps, self._tls)
        return self._planner

    def _holding(self) -> str:
        return self._planner.holding if self._planner is not None else ""

    def _forget(self, error: BaseException) -> None:
        """Drop what the failure may have spoilt; the next step builds it anew."""
        self._abandon()
        self._schema = None  # it may have moved on over DDL that wasn't committed
        if isinstance(error, WindowConflictError):
            assert self._claim is not None
            self._claim.check()
            self._lo = None
        if spark_session.is_transient(error) or _judge(error) == "unknown" or isinstance(error, WorkerError):
            if self._spark is not None:
                spark_session.close(self._spark)
            self._spark = self._job = None

    # Waiting

    def _over(self) -> bool:
        reached = self._until_ts is not None and self._lo is not None and self._lo >= self._until_ts
        return reached or self._stop() or (self._end is not None and time.monotonic() >= self._end)

    def _wait(self, seconds: float) -> None:
        """Sleep, but no longer than until the end of the run."""
        until = time.monotonic() + seconds
        while not self._over() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _wait_or_stop(self, seconds: float) -> bool:
        self._wait(seconds)
        return self._over()

    def _is_paused(self) -> bool:
        now = time.monotonic()
        if now - self._control_read >= _CONTROL_INTERVAL_S:
            self._control_read = now
            paused = self._relay.control().land_paused
            if paused != self._paused:
                log.info("landing is %s", "paused, as operators want it" if paused else "resumed")
            self._paused = paused
            if self._entry is not None:
                self._entry.set_working(working=not paused)
        return self._paused


class WrongClusterError(Exception):
    """The relay log holds another cluster's windows."""


def _judge(error: BaseException) -> str:
    """transient: try again for ever; unknown: try again a few times; terminal: somebody has to act."""
    if isinstance(error, WorkerError):
        return "transient" if error.kind in _TRANSIENT_IN_WORKER else "unknown"
    if isinstance(error, WindowConflictError) or spark_session.is_transient(error) or isinstance(error, _TRANSIENT):
        return "transient"
    if isinstance(error, DownstreamError):
        return "transient" if is_downstream_transient(error) else "terminal"
    if type(error).__module__.startswith(("pyspark", "grpc", "py4j")):
        return "unknown"
    return "terminal"


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000

"""Run the landing loop: window by window from the pumps into the relay log.

Each window is planned, read and written by one Spark job, given the schemas and DDL it needs, and
then committed by its record. A commit continues at the end of the chain of records. So a second
process, or a job that a killed process left behind, can at most leave parts that no record names.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from sluice.errors import SluiceError, ours
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.downstream.ownership import (
    BootstrapPending,
    PipelineIdentity,
    RegistryHeartbeat,
    downstream_name,
    require_bootstrap_done,
)
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.landing._cluster import UpstreamCluster
from sluice.etl.landing._control import CHECK_INTERVAL_S, LandingControl, RunLimits, Stop
from sluice.etl.landing._ddl_jobs import LandingStopped
from sluice.etl.landing._import_jobs import ImportWatch
from sluice.etl.landing._job_queue import FinishedPlan, LandingJobs, record_of, report_of
from sluice.etl.landing._kept_versions import LandingSafePoint
from sluice.etl.landing._masking import WindowMasking, note_masks
from sluice.etl.landing._misplaced_rows import MisplacedRowError, check_row_partitions
from sluice.etl.landing._report import (
    LandedWindow,
    LandingCounters,
    LandingProgressLog,
    LandSummary,
    ms_since,
)
from sluice.etl.landing._second_writes import DuplicateWrites
from sluice.etl.landing._tables_without_ddl import UnknownTableError
from sluice.etl.landing._window_rows import WindowRows
from sluice.etl.landing._without_binlog import mark_unverified, warn_without_binlog
from sluice.etl.landing.definitions_used import DefinitionResolver, DefinitionUnknownError
from sluice.etl.landing.extract import BinlogDecodeError
from sluice.etl.landing.extract.copies import settle_copies
from sluice.etl.landing.planner import CommitsPurgedError
from sluice.etl.landing.schema import LandingSchema
from sluice.etl.landing.schema_rebuild import InitialSchema
from sluice.etl.landing.start_position import (
    NoCheckpointError,
    StartPosition,
    WrongClusterError,
    has_landed,
    initial_position,
    resume_from_log,
)
from sluice.etl.landing.upstream_schema import version_at
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings import Settings
from sluice.etl.spark.session_target import SessionTarget
from sluice.etl.upstream_clock import upstream_skew_ms
from sluice.relay import ClaimLostError, RoleClaim, WindowConflictError, iter_parts
from sluice.relay.role_lease import RoleStandby
from sluice.relay.schema_snapshots import SchemaSnapshots
from sluice.relay.wakeup import notify
from sluice.tidb.job import HistoryError

__all__ = [
    "BinlogDecodeError",
    "CommitsPurgedError",
    "DefinitionUnknownError",
    "LandSummary",
    "LandedWindow",
    "MisplacedRowError",
    "NoCheckpointError",
    "UnknownTableError",
    "WrongClusterError",
    "run_land",
]

log = logging.getLogger("sluice.land")
_QUIET_CHECKS = 3
ROLE = "land"
"""The role that a landing process claims; of several pipelines that read one relay log one has it.
"""


def run_land(  # noqa: PLR0913 options by name
    settings: Settings,
    *,
    run_seconds: float | None = None,
    stop: Stop | None = None,
    until_ts: int | None = None,
    start_ts: int | None = None,
    on_window: Callable[[LandedWindow], None] | None = None,
    summary: LandSummary | None = None,
) -> LandSummary:
    """Land windows until `run_seconds` are over, `stop` is set, or `until_ts` (TSO) is landed.

    Landing continues where the relay log ends. An empty one begins at `start_ts`; without it at
    the downstream's checkpoint, and without that at the settings' initial-commit-ts (0: everything
    the pumps have, -1: now). `summary` is filled during the run and returned. While the relay
    log's control is paused, the run waits. Transient errors (a pump, PD, TiKV, Spark or the disk
    is unavailable) are logged and retried.

    Raises ClaimLostError when another process took over, BinlogDecodeError, UnknownTableError,
    DefinitionUnknownError, MisplacedRowError, CommitsPurgedError, WrongClusterError,
    NoCheckpointError, HistoryError, and relay errors.
    """
    limits = RunLimits(run_seconds, stop, until_ts)
    loop = _LandingLoop(settings, limits, start_ts, on_window, summary or LandSummary())
    try:
        return loop.run()
    finally:
        loop.close()


class _LandingLoop:
    def __init__(
        self,
        settings: Settings,
        limits: RunLimits,
        start_ts: int | None,
        on_window: Callable[[LandedWindow], None] | None,
        summary: LandSummary,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._start_ts = start_ts
        self._on_window = on_window
        self._relay = settings.open_relay()
        self._cluster = UpstreamCluster(settings.upstream)
        cluster = self._cluster
        self._second_writes = DuplicateWrites(self._relay, cluster.tikv.mvcc_get_many)
        self._definitions = DefinitionResolver(
            self._relay, cluster.tikv.mvcc_get_many, cluster.pd.get_gc_safe_point
        )
        self._safe_point = LandingSafePoint(cluster.pd, PipelineIdentity.from_settings(settings).id)
        self._control = LandingControl(self._relay, settings.ignored_ts)
        self._jobs = LandingJobs(
            SessionTarget(settings.spark, settings.spark_role("land"), settings.relay.url),
            self._cluster,
            settings.landed_window,
            limits,
            self._relay,
        )
        self._masking = (
            WindowMasking(settings, self._relay, self._jobs) if settings.lands_masked else None
        )
        self._claim: RoleClaim | None = None
        self._standby = RoleStandby(self._relay, ROLE, self._latest_ts, log)
        self._start: StartPosition | None = None
        self._schema: LandingSchema | None = None
        self._heartbeat: RegistryHeartbeat | None = None
        self._is_due = False
        self._backoff = RetryBackoff(log, "landing")
        self._progress = LandingProgressLog()
        self._counters = LandingCounters(self._relay, lambda: upstream_skew_ms(settings))
        self._imports = ImportWatch(
            self._relay,
            cluster.tikv,
            settings.filters.wants_table,
            self._counters.without_binlog,
        )
        self.summary = summary

    def run(self) -> LandSummary:
        while not self._limits.is_over(self._landed_ts):
            try:
                self._step()
                self._backoff.over()
            except LandingStopped:
                break
            except ClaimLostError:
                if self._relay.claimant(ROLE) == self._relay.pipeline:
                    raise
                self._claim = None
                self._let_others_land()
            except Exception as error:
                known = ours(error)
                self._counters.record_failure(error)
                if not known.transient:
                    raise
                self.summary.retries += 1
                delay = self._backoff.after(known, f"at hi={self._landed_ts}")
                self._reset_after(known)
                self._wait(delay)
        self._progress.maybe_log(self.summary, self._jobs.limiting_pump, last=True)
        return self.summary

    def close(self) -> None:
        self._counters.close()
        self._jobs.abandon()
        if self._heartbeat is not None:
            self._heartbeat.close()
        self._jobs.close()
        self._cluster.close()

    @property
    def _landed_ts(self) -> int | None:
        """Return the TSO through which everything is landed; None before it is known."""
        return self._start.ts if self._start is not None else None

    def _wait(self, seconds: float) -> bool:
        return self._limits.wait(seconds, self._landed_ts)

    def _step(self) -> None:
        """Land at most one window."""
        if self._is_paused():
            self._yield_role()
            self._wait(CHECK_INTERVAL_S)
            return
        if self._claim is None:
            if not self._standby.should_claim():
                self._wait(CHECK_INTERVAL_S)
                return
            self._claim = self._relay.claim(ROLE)
            log.info("landing into %s as %s", self._relay.url, self._claim.token)
        if self._start is None:
            self._find_start()
            return
        self._safe_point.update(self._start.ts)
        if not self._start.is_resumed:
            self._require_bootstrap_done()
        if self._schema is None:
            note_masks(self._settings, self._relay, self._start.ts)
            self._schema = self._load_schema(self._start)
        self._jobs.connect(self._start.ts, self._claim.check)
        due = self._is_due or self._control.needs_window_now(self._start.ts, self._jobs.seen_ts)
        empty_now, self._is_due = due or not self._start.is_resumed, False
        masking, schema = self._masking, self._schema
        self._jobs.submit(
            self._start.ts,
            self._claim.token,
            self._skips,
            empty_now=empty_now,
            masks_at=None if masking is None else partial(masking.order_at, schema),
        )
        landed = self._jobs.pop()
        if landed is None:
            self._progress.maybe_log(self.summary, self._jobs.limiting_pump)
            self._wait_for_commits(self._start.ts)
            return
        self._commit(landed, self._schema, self._claim, self._start)

    def _wait_for_commits(self, landed_ts: int) -> None:
        """Wait for a commit at a pump, an operator's control, or the registry's next reading."""
        for _ in range(_QUIET_CHECKS):
            if self._jobs.wait_for_commits(landed_ts, CHECK_INTERVAL_S) or self._limits.is_over(
                landed_ts
            ):
                return
            self._is_due = self._control.needs_window_now(landed_ts, self._jobs.seen_ts)
            if self._is_due or self._is_paused():
                return

    def _yield_role(self) -> None:
        """Release the claim while paused, so that another pipeline on this relay log lands."""
        if self._claim is None or not self._control.is_shared:
            return
        claim, self._claim = self._claim, None
        self._let_others_land()
        with contextlib.suppress(ClaimLostError):
            claim.release()

    def _let_others_land(self) -> None:
        """Drop the landing position and schema: another process moves them on from now on."""
        self._jobs.abandon()
        self._start = self._schema = None
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None

    def _is_paused(self) -> bool:
        paused = self._control.is_paused()
        if self._heartbeat is not None:
            self._heartbeat.set_working(working=not paused)
        return paused

    def _skips(self) -> frozenset[int]:
        return self._control.skips(self._landed_ts or 0)

    def _commit(
        self, landed: FinishedPlan, schema: LandingSchema, claim: RoleClaim, start: StartPosition
    ) -> None:
        stages, skips = landed.stages_ms, self._skips()
        bounds = landed.plan.lo, landed.plan.hi, claim.token
        if landed.result.lacks_tables:
            landed = self._jobs.run_again(landed, claim.token, skips, None)
        if self._masking is None or landed.masks is not None:
            landed = self._without_copies(landed, bounds, skips)
        result = landed.result
        began = time.perf_counter()
        rows = WindowRows(partial(iter_parts, self._relay.storage, result.parts))
        described = schema.resolve(
            result.ddls, result.tables, self._wait, skips, rows, landed.version
        )
        if described.ddls and described.ddls[0].commit_ts <= landed.plan.lo:
            raise HistoryError(
                f"{described.ddls[0].title} belongs before the first row of the window behind"
                f" {landed.plan.lo}, and no timestamp lies between",
                hint=(
                    f"`sluice txn skip {landed.plan.lo + 1}`, then bring its rows with `sluice"
                    " backfill`"
                ),
            )
        stages["resolve"] = ms_since(began)
        if self._masking is not None:
            masked = self._masking.mask(landed, described, claim.token, skips)
            if masked is not landed:
                landed = self._without_copies(masked, bounds, skips)
            described = self._masking.describe(described)
        landed, described = self._without_duplicates(landed, described, schema, bounds, skips)
        result = landed.result
        if described.moved or described.ddls:
            began = time.perf_counter()
            moves = schema.recent_moves(described, result.tables)
            check_row_partitions(self._relay, described, moves, result.parts, skips)
            described, parts = self._definitions.resolve(
                described,
                moves,
                result.parts,
                bounds,
                skips,
                schema.definitions_to_come,
                is_captured=result.is_captured,
            )
            landed = replace(landed, result=replace(result, parts=parts))
            stages["definitions"] = ms_since(began)
        stages |= result.worker_ms
        stages["spark"] = stages["job"] - sum(result.worker_ms.values())
        record = record_of(landed, described, self._cluster.id, claim.token)
        began = time.perf_counter()
        claim.check()
        try:
            if start.is_resumed:
                self._relay.commit(record)
            else:
                self._relay.begin(record)
        except WindowConflictError:
            claim.check()
            raise
        stages["commit"] = ms_since(began)
        notify(self._relay.url)
        for entry in result.left_out:
            log.warning(
                "excluded as decided, because it cannot be read: commit_ts=%d: %s",
                entry["commit_ts"],
                entry["why"],
            )
        wants_table = self._settings.filters.wants_table
        if unlogged := warn_without_binlog(described.ddls, wants_table):
            self._counters.without_binlog(len(unlogged))
            mark_unverified(self._relay, unlogged, wants_table)
        self._imports.check(record.hi)
        self._start = StartPosition(record.hi, is_resumed=True)
        self._register(record.hi)
        self._log_window(report_of(landed, record))

    def _without_copies(
        self, landed: FinishedPlan, bounds: tuple[int, int, str], skips: Collection[int]
    ) -> FinishedPlan:
        """Return a window once the copies that two pumps have sent are equal."""
        result = landed.result
        if not result.shared:
            return landed
        began = time.perf_counter()
        parts = settle_copies(self._relay, result.shared, result.parts, bounds, skips)
        landed.stages_ms["copies"] = ms_since(began)
        return replace(landed, result=replace(result, parts=parts))

    def _without_duplicates(
        self,
        landed: FinishedPlan,
        described: RecordedSchema,
        schema: LandingSchema,
        bounds: tuple[int, int, str],
        skips: Collection[int],
    ) -> tuple[FinishedPlan, RecordedSchema]:
        """Drop the copies that TiDB wrote while it reorganized partitions."""
        differ: set[int] = set()
        # A capture takes the rows of the partitions that readers see, and no copies.
        if schema.written_twice and not landed.result.is_captured:
            began = time.perf_counter()
            parts, differ = self._second_writes.drop_copies(
                landed.result.parts,
                schema.written_twice,
                described,
                schema.physical_ids,
                bounds,
                skips,
            )
            landed = replace(landed, result=replace(landed.result, parts=parts))
            landed.stages_ms["once"] = ms_since(began)
        return landed, schema.with_doubled(described, differ)

    def _log_window(self, window: LandedWindow) -> None:
        self.summary.add(window)
        self._counters.landed(window)
        if self._on_window is not None:
            self._on_window(window)
        self._progress.add(window)
        self._progress.maybe_log(self.summary, self._jobs.limiting_pump)

    def _latest_ts(self) -> int:
        last = self._relay.last()
        return last.hi if last is not None else 0

    # Starting, and starting again

    def _require_bootstrap_done(self) -> None:
        """Raise BootstrapPending while a requested copy has no checkpoint: landing begins there."""
        if self._start_ts is not None:
            return
        target, cluster_id = self._settings.target, self._cluster.id
        try:
            require_bootstrap_done(
                self._relay,
                downstream_name(target),
                lambda: read_checkpoint(target, cluster_id) is not None,
            )
        except BootstrapPending:
            self._start = None
            raise

    def _find_start(self) -> None:
        start = resume_from_log(self._relay, self._cluster)
        if start is None:
            self._require_bootstrap_done()
        if start is None and self._start_ts is not None:
            start = StartPosition(self._start_ts, is_resumed=False)
        self._start = start = start or initial_position(
            self._settings.target, self._settings.upstream, self._cluster
        )
        self.summary.hi = start.ts
        self._counters.set_position(start.ts)
        # else after the first window: a position in the registry claims landed commits
        if start.is_resumed:
            self._register(start.ts)
        log.info("landing from commit_ts %d on", start.ts)

    def _register(self, landed_ts: int) -> None:
        if self._heartbeat is not None:
            self._heartbeat.landed(landed_ts)
            return
        cluster, tls = self._cluster, self._settings.upstream.tls()
        pipeline = PipelineIdentity.from_settings(self._settings)
        self._heartbeat = RegistryHeartbeat(
            pipeline, cluster.registry, tls, cluster.pd.tso, landed_ts
        )

    def _load_schema(self, start: StartPosition) -> LandingSchema:
        pd, tikv = self._cluster.pd, self._cluster.tikv
        last = self._relay.last()
        if last is not None:
            version, relaxed, doubled = last.schema_version, last.relaxed, last.doubled
        else:
            version = (
                start.schema_version
                if start.schema_version is not None
                else version_at(tikv, start.ts)
            )
            relaxed, doubled = None, {}
        began = time.perf_counter()
        first = self._relay.first() if last is not None else None
        landed = (first.lo if first is not None else start.ts), start.ts
        begin = InitialSchema(
            version,
            relaxed,
            # one has clear defaults
            None if self._masking is not None else SchemaSnapshots(self._relay.storage),
            doubled,
            partial(has_landed, self._relay),
            landed,
        )
        schema = LandingSchema.load(pd, tikv, begin, self._settings.upstream.new_collations)
        log.info(
            "schema version %d rebuilt from TiDB's DDL history in %.0f ms", version, ms_since(began)
        )
        return schema

    def _reset_after(self, error: SluiceError) -> None:
        """Drop the state that a failure may have left inconsistent; the next step rebuilds it."""
        self._jobs.abandon()
        self._schema = None  # it may have moved on over DDL that wasn't committed
        if isinstance(error, WindowConflictError):
            self._start = None

"""The landing loop: window by window from the pumps into the relay log.

Each window is planned, read and written by one Spark job, given the schemas and DDL it needs, and then committed by its
record. Whoever commits continues at the end of the chain of records, so a second process, or a job that a killed one
left behind, can at most leave parts that no record names.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from errors import SluiceError, ours
from etl.explode import BinlogDecodeError
from etl.landing._ahead import JobsAhead, LandedPlan
from etl.landing._cluster import Cluster
from etl.landing._counting import Counting
from etl.landing._kept_versions import KeptVersions
from etl.landing._misplaced_rows import MisplacedRowError, check_places
from etl.landing._next_change import Stopped
from etl.landing._orders import LOOK_EVERY_S, Orders
from etl.landing._record import record_of, report_of
from etl.landing._report import LandedWindow, LandSummary, Progress, ms_since
from etl.landing._run_limits import RunLimits, Stop
from etl.landing._second_writes import SecondWrites
from etl.landing._window_rows import WindowRows
from etl.landing._without_binlog import warn_without_binlog
from etl.landing.definitions_used import DefinitionsUsed, DefinitionUnknownError
from etl.landing.planner import CommitsPurgedError
from etl.landing.schema import LandingSchema, SchemaBegin, UnknownTableError, version_at
from etl.landing.start import NoCheckpointError, Start, WrongClusterError, continued, first
from etl.ownership import CopyAwaitedError, DrainerEntry, Pipeline, await_copy, downstream_name
from etl.recorded_schema import RecordedSchema
from etl.settings import Settings
from etl.sinks import read_checkpoint
from etl.spark.place import Place
from etl.waiting import Waiting
from relay import Claim, ClaimLostError, WindowConflictError, iter_parts
from relay.bell import ring
from relay.schema_snapshots import SchemaSnapshots
from relay.turn import Turn
from upstream.job import HistoryError

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
_QUIET_LOOKS = 3
ROLE = "land"
"""By this name landing is claimed; of several pipelines that read one relay log one does it."""


def run_land(  # noqa: PLR0913 one optional wish each, by name
    settings: Settings,
    *,
    run_seconds: float | None = None,
    stop: Stop | None = None,
    until_ts: int | None = None,
    start_ts: int | None = None,
    on_window: Callable[[LandedWindow], None] | None = None,
    summary: LandSummary | None = None,
) -> LandSummary:
    """Land windows until `run_seconds` are over, `stop` says so, or everything through `until_ts` (TSO) is landed.

    It continues where the relay log ends. An empty one begins at `start_ts`; without it at the downstream's checkpoint,
    and without that at the settings' initial-commit-ts (0 everything the pumps have, -1 now). `summary` is filled
    meanwhile, and what is returned. While the relay log's
    control says paused, it waits. What may pass (a pump, PD, TiKV, Spark or the disk is away) is logged and tried
    again.

    Raises ClaimLostError when another process took over, BinlogDecodeError, UnknownTableError, DefinitionUnknownError,
    MisplacedRowError, CommitsPurgedError, WrongClusterError, NoCheckpointError, HistoryError, and relay errors.
    """
    limits = RunLimits(run_seconds, stop, until_ts)
    loop = _Loop(settings, limits, start_ts, on_window, summary or LandSummary())
    try:
        return loop.run()
    finally:
        loop.close()


class _Loop:
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
        self._cluster = Cluster(settings.upstream)
        cluster = self._cluster
        self._second_writes = SecondWrites(self._relay, cluster.tikv.mvcc_get_many)
        self._definitions = DefinitionsUsed(self._relay, cluster.tikv.mvcc_get_many, cluster.pd.get_gc_safe_point)
        self._versions = KeptVersions(cluster.pd, Pipeline.of(settings).id)
        self._orders = Orders(self._relay, settings.ignored_ts)
        self._jobs = JobsAhead(
            Place(settings.spark, settings.spark_role("land"), settings.relay.url),
            self._cluster,
            settings.landed_window,
            limits,
            self._relay,
        )
        self._claim: Claim | None = None
        self._turn = Turn(self._relay, ROLE, self._newest, log)
        self._start: Start | None = None
        self._schema: LandingSchema | None = None
        self._entry: DrainerEntry | None = None
        self._is_due = False
        self._waiting = Waiting(log, "landing")
        self._progress = Progress()
        self._counting = Counting(self._relay)
        self.summary = summary

    def run(self) -> LandSummary:
        while not self._limits.is_over(self._landed_ts):
            try:
                self._step()
                self._waiting.over()
            except Stopped:
                break
            except ClaimLostError:
                if self._relay.claimant(ROLE) == self._relay.pipeline:
                    raise
                self._claim = None
                self._leave_to_others()
            except Exception as error:
                told = ours(error)
                self._counting.failed(error)
                if not told.transient:
                    raise
                self.summary.retries += 1
                delay = self._waiting.after(told, f"at hi={self._landed_ts}")
                self._forget(told)
                self._wait(delay)
        self._progress.say(self.summary, self._jobs.holding, last=True)
        return self.summary

    def close(self) -> None:
        self._counting.close()
        self._jobs.abandon()
        if self._entry is not None:
            self._entry.close()
        self._jobs.close()
        self._cluster.close()

    @property
    def _landed_ts(self) -> int | None:
        """Through where everything is landed; None while that isn't looked up."""
        return self._start.ts if self._start is not None else None

    def _wait(self, seconds: float) -> bool:
        return self._limits.wait(seconds, self._landed_ts)

    def _step(self) -> None:
        """At most one window."""
        if self._is_paused():
            self._stand_aside()
            self._wait(LOOK_EVERY_S)
            return
        if self._claim is None:
            if not self._turn.is_ours():
                self._wait(LOOK_EVERY_S)
                return
            self._claim = self._relay.claim(ROLE)
            log.info("landing into %s as %s", self._relay.url, self._claim.token)
        if self._start is None:
            self._find_start()
            return
        self._versions.keep(self._start.ts)
        if not self._start.has_windows:
            self._await_copy()
        if self._schema is None:
            self._schema = self._load_schema(self._start)
        self._jobs.connect(self._start.ts, self._claim.check)
        due = self._is_due or self._orders.window_is_due(self._start.ts, self._jobs.seen_ts)
        empty_now, self._is_due = due or not self._start.has_windows, False
        self._jobs.fill(self._start.ts, self._claim.token, self._skips, empty_now=empty_now)
        landed = self._jobs.take()
        if landed is None:
            self._progress.say(self.summary, self._jobs.holding)
            self._await_news(self._start.ts)
            return
        self._commit(landed, self._schema, self._claim, self._start)

    def _await_news(self, landed_ts: int) -> None:
        """Nothing new: until a pump says so, somebody wants a window, or it is time to see which pumps there are."""
        for _ in range(_QUIET_LOOKS):
            if self._jobs.await_news(landed_ts, LOOK_EVERY_S) or self._limits.is_over(landed_ts):
                return
            self._is_due = self._orders.window_is_due(landed_ts, self._jobs.seen_ts)
            if self._is_due or self._is_paused():
                return

    def _stand_aside(self) -> None:
        """Another pipeline that reads this relay log lands while this one is paused."""
        if self._claim is None or not self._orders.are_for_several:
            return
        claim, self._claim = self._claim, None
        self._leave_to_others()
        with contextlib.suppress(ClaimLostError):
            claim.let_go()

    def _leave_to_others(self) -> None:
        """What was known of where landing is becomes old from now on."""
        self._jobs.abandon()
        self._start = self._schema = None
        if self._entry is not None:
            self._entry.close()
            self._entry = None

    def _is_paused(self) -> bool:
        paused = self._orders.is_paused()
        if self._entry is not None:
            self._entry.set_working(working=not paused)
        return paused

    def _skips(self) -> frozenset[int]:
        return self._orders.skips(self._landed_ts or 0)

    def _commit(self, landed: LandedPlan, schema: LandingSchema, claim: Claim, start: Start) -> None:
        result, stages = landed.result, landed.stages_ms
        began = time.perf_counter()
        skips = self._skips()
        rows = WindowRows(partial(iter_parts, self._relay.storage, result.parts))
        described = schema.resolve(result.ddls, result.tables, self._wait, skips, rows)
        if described.ddls and described.ddls[0].commit_ts <= landed.plan.lo:
            raise HistoryError(
                f"{described.ddls[0].title} belongs before the first row of the window behind {landed.plan.lo}, and no"
                " timestamp lies between",
                way_out=f"`sluice txn skip {landed.plan.lo + 1}`, then bring its rows with `sluice backfill`",
            )
        stages["resolve"] = ms_since(began)
        landed, described = self._once(landed, described, schema, (landed.plan.lo, landed.plan.hi, claim.token), skips)
        result = landed.result
        if described.moved or described.ddls:
            began = time.perf_counter()
            moves = schema.recent_moves(described, result.tables)
            check_places(self._relay, described, moves, result.parts, skips)
            bounds = landed.plan.lo, landed.plan.hi, claim.token
            described, parts = self._definitions.settle(
                described, moves, result.parts, bounds, skips, schema.definitions_to_come
            )
            landed = replace(landed, result=replace(result, parts=parts))
            stages["definitions"] = ms_since(began)
        stages |= result.worker_ms
        stages["spark"] = stages["job"] - sum(result.worker_ms.values())
        record = record_of(landed, described, self._cluster.id, claim.token)
        began = time.perf_counter()
        claim.check()
        try:
            if start.has_windows:
                self._relay.commit(record)
            else:
                self._relay.begin(record)
        except WindowConflictError:
            claim.check()
            raise
        stages["commit"] = ms_since(began)
        ring(self._relay.url)
        for entry in result.left_out:
            log.warning("left out as decided, for it can't be read: commit_ts %d: %s", entry["commit_ts"], entry["why"])
        self._counting.without_binlog(warn_without_binlog(described.ddls, self._settings.filters.wants_table))
        self._start = Start(record.hi, has_windows=True)
        self._register(record.hi)
        self._say(report_of(landed, record))

    def _once(
        self,
        landed: LandedPlan,
        described: RecordedSchema,
        schema: LandingSchema,
        bounds: tuple[int, int, str],
        skips: Collection[int],
    ) -> tuple[LandedPlan, RecordedSchema]:
        """Leave out what TiDB wrote twice while it reorganized partitions."""
        differ: set[int] = set()
        if schema.written_twice:
            began = time.perf_counter()
            parts, differ = self._second_writes.left_out(
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

    def _has_landed(self, job_id: int, since_ts: int) -> bool:
        """Return whether a window behind a TSO names a DDL job."""
        first = self._relay.first()
        if first is None:
            return False
        windows = self._relay.windows(max(since_ts, first.lo))
        return any(int(ddl["job_id"]) == job_id for window in windows for ddl in window.ddls)

    def _say(self, window: LandedWindow) -> None:
        self.summary.add(window)
        self._counting.landed(window)
        if self._on_window is not None:
            self._on_window(window)
        self._progress.add(window)
        self._progress.say(self.summary, self._jobs.holding)

    def _newest(self) -> int:
        last = self._relay.last()
        return last.hi if last is not None else 0

    # Beginning, and beginning again

    def _await_copy(self) -> None:
        """Nothing is landed before a copy that is asked for has its checkpoint: landing begins there."""
        if self._start_ts is not None:
            return
        target, cluster_id = self._settings.target, self._cluster.id
        try:
            await_copy(self._relay, downstream_name(target), lambda: read_checkpoint(target, cluster_id) is not None)
        except CopyAwaitedError:
            self._start = None
            raise

    def _find_start(self) -> None:
        start = continued(self._relay, self._cluster)
        if start is None:
            self._await_copy()
        if start is None and self._start_ts is not None:
            start = Start(self._start_ts, has_windows=False)
        self._start = start = start or first(self._settings.target, self._settings.upstream, self._cluster)
        self.summary.hi = start.ts
        self._counting.at(start.ts)
        if start.has_windows:  # else once something is landed: a position in the registry says that something was
            self._register(start.ts)
        log.info("landing from commit_ts %d on", start.ts)

    def _register(self, landed_ts: int) -> None:
        if self._entry is not None:
            self._entry.landed(landed_ts)
            return
        cluster, tls = self._cluster, self._settings.upstream.tls()
        pipeline = Pipeline.of(self._settings)
        self._entry = DrainerEntry(pipeline, cluster.registry, tls, cluster.pd.tso, landed_ts)

    def _load_schema(self, start: Start) -> LandingSchema:
        pd, tikv = self._cluster.pd, self._cluster.tikv
        last = self._relay.last()
        if last is not None:
            version, relaxed, doubled = last.schema_version, last.relaxed, last.doubled
        else:
            version = start.schema_version if start.schema_version is not None else version_at(tikv, start.ts)
            relaxed, doubled = None, {}
        began = time.perf_counter()
        first = self._relay.first() if last is not None else None
        landed = (first.lo if first is not None else start.ts), start.ts
        begin = SchemaBegin(version, relaxed, SchemaSnapshots(self._relay.storage), doubled, self._has_landed, landed)
        schema = LandingSchema.load(pd, tikv, begin, self._settings.upstream.new_collations)
        log.info("schema version %d rebuilt from TiDB's DDL history in %.0f ms", version, ms_since(began))
        return schema

    def _forget(self, error: SluiceError) -> None:
        """Drop what the failure may have spoilt; the next step builds it anew."""
        self._jobs.abandon()
        self._schema = None  # it may have moved on over DDL that wasn't committed
        if isinstance(error, WindowConflictError):
            self._start = None

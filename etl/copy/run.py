"""Plan, begin, resume and give up a bootstrap, as people ask for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Self

from sluice.etl.copy.bootstrap import KIND, BootstrapPlanner
from sluice.etl.copy.bootstrap_run import BootstrapRun, BootstrapSummary, CopyProgressCounts
from sluice.etl.copy.copy_source_cluster import SourceCluster
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.dumpling import DumplingFolder, DumplingOptions
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.gc_safepoint import GcSafePoint
from sluice.etl.copy.plan import CopyPlan
from sluice.etl.copy.preconditions import PreconditionMonitor, check_binlogs_retained
from sluice.etl.copy.preflight import needed_from, relay_problems
from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.copy.source import RowSource
from sluice.etl.copy.sources import BootstrapRequest, BootstrapSpec
from sluice.etl.copy.spark_loads import MakeLoads, SparkLoadMaker
from sluice.etl.copy.tidb_sql import TidbAddress, TidbSql
from sluice.etl.downstream.ownership import PipelineIdentity
from sluice.etl.landing.planner import WindowPlanner
from sluice.etl.settings import Kafka, Settings
from sluice.etl.spark.session_target import SessionTarget
from sluice.relay.consumers import Consumers, consumer_name
from sluice.relay.jobs import CANCEL, CANCELLED, FINAL_STATES, Job, JobRun, Jobs, Runner

if TYPE_CHECKING:
    from sluice.etl.copy.topics_run import TopicsCopyRun

__all__ = [
    "SNAPSHOT_SCHEME",
    "TIDB_SCHEME",
    "BootstrapSession",
    "cancel_bootstrap",
    "plan_bootstrap",
    "resume_bootstrap",
    "run_bootstrap",
]

TIDB_SCHEME = "tidb://"
"""Stands for a dump's URL: the TiDB of [upstream] sql-host, as it is when the copy begins."""
SNAPSHOT_SCHEME = "snapshot://"
"""Stands for a dump's URL: the youngest snapshot of the archive, or the one named behind it."""

ShowProgress = Callable[[CopyProgressCounts], None]


class BootstrapSession:
    """The resources of a bootstrap: the cluster, the source, TiDB's GC held back."""

    def __init__(
        self,
        settings: Settings,
        source: RowSource,
        globs: tuple[str, ...],
        stack: ExitStack,
        *,
        with_schema: bool = True,
    ) -> None:
        self._settings = settings
        self._source = source
        self._stack = stack
        self._pipeline = PipelineIdentity.from_settings(settings)
        self.cluster = stack.enter_context(SourceCluster.connect(settings.upstream))
        self._safe_point = (
            GcSafePoint(self.cluster.pd, f"sluice-{self._pipeline.id}", source.position)
            if isinstance(source, TidbSql)
            else None
        )
        position = source.position
        self._needed = needed_from(settings.open_relay(), position)
        definitions = (
            self.cluster.definitions(position) if with_schema else SourceSchema(position, 0, (), ())
        )
        self.bootstrap = BootstrapPlanner(
            settings, source, definitions, self.cluster.pd.cluster_id, globs
        )

    @classmethod
    @contextmanager
    def from_request(
        cls, settings: Settings, request: BootstrapRequest, *, waits: bool = True
    ) -> Iterator[Self]:
        """Open one for a new request; `waits` for a pump before the position is taken from TiDB.

        Raises CopyError, PDError, TiKVError, EtcdError.
        """
        with ExitStack() as stack:
            source = _open_source(settings, request.url, request.options, waits=waits)
            work = cls(settings, source, request.globs, stack)
            work.hold_gc()
            yield work

    @classmethod
    @contextmanager
    def from_job(cls, settings: Settings, job: Job, *, with_schema: bool = True) -> Iterator[Self]:
        """Open one to resume a job; `with_schema` unless only rows are copied.

        Raises CopyError, PDError, TiKVError, EtcdError.
        """
        asked = BootstrapSpec.from_json(job.spec.asked)
        with ExitStack() as stack:
            yield cls(settings, asked.open_source(), asked.tables, stack, with_schema=with_schema)

    def hold_gc(self) -> None:
        """Hold TiDB's GC back as long as the session is open.

        Raises CopyError if it has not, PDError.
        """
        if self._safe_point is not None:
            self._stack.enter_context(self._safe_point)

    def problems(self) -> list[str]:
        """Return why the pipeline can't replicate what comes after the source's position.

        Waits until that is known, see `SourceCluster.awaited_problems`.
        """
        return self.cluster.wait_until_ready(self._needed, self._pipeline, self._settings.window)

    def plan(self, into: Sequence[str]) -> CopyPlan:
        """Return what would be done, and what hinders it now.

        What only time can show is a note.
        """
        plan = self.bootstrap.plan(into)
        try:
            found = self.cluster.problems(self._needed, self._pipeline, self._settings.window)
        except CopyError as error:
            if not error.transient:
                raise
            return dataclasses.replace(plan, notes=(*plan.notes, f"{error}. A copy waits for that"))
        return dataclasses.replace(plan, problems=(*plan.problems, *found))

    def begin(self, request: BootstrapRequest) -> Job:
        """Return the job, see `BootstrapPlanner.begin`."""
        if Jobs.for_pipeline(self._settings.open_relay()).find_open(KIND) is None and (
            found := self.problems()
        ):
            plan = self.bootstrap.plan(request.into)
            raise CopyError("\n".join((*plan.problems, *found)))
        return self.bootstrap.begin(request.into, request.by)

    def register(self) -> None:
        """Register as `SourceCluster.registered`, and check the entry from time to time."""
        self._stack.enter_context(
            self.cluster.registered(self._pipeline, self._needed, self._settings.window)
        )
        planner = self._stack.enter_context(closing(self.cluster.planner(self._settings.window)))
        self.bootstrap.watch = PreconditionMonitor(lambda: self._look(planner))
        self.bootstrap.watch.now()

    def _look(self, planner: WindowPlanner) -> None:
        """Check that what the copy needs is still there, as far as that can be known.

        Nothing may have been landed that begins later. Raises CopyError.
        """
        if self._safe_point is not None:
            self._safe_point.check()
        if found := relay_problems(self._settings.open_relay(), self._source.position):
            raise CopyError(found[0])
        try:
            check_binlogs_retained(
                planner, needed_from(self._settings.open_relay(), self._source.position)
            )
        except CopyError as error:
            # a pump that doesn't answer is waited for when replication begins
            if not error.transient:
                raise

    def run_of(
        self, job: Job, run: JobRun, on_progress: ShowProgress | None = None
    ) -> BootstrapRun | TopicsCopyRun:
        """See `BootstrapPlanner.run_of`."""
        return self.bootstrap.run_of(job, run, on_progress)

    def loads(self, on_progress: ShowProgress | None = None) -> MakeLoads:
        """Return the maker of loads on Spark, which is waited for."""
        settings, role = self._settings, self._settings.spark_role("copy")
        spark = SparkLoadMaker(
            SessionTarget(settings.spark.for_batch(), role, settings.relay.url),
            self._source.spec(),
            settings.kafka.message_format if isinstance(settings.target, Kafka) else None,
        )
        self._stack.callback(spark.close)
        if on_progress is not None:
            on_progress(
                CopyProgressCounts(
                    doing=f"waiting for Spark at {self._settings.spark.for_batch().remote}"
                )
            )
        spark.connect()
        return spark

    def release(self, summary: BootstrapSummary) -> None:
        """Release TiDB's GC once the job is over.

        Of one that was given up the pumps need keep nothing.
        """
        if summary.state in FINAL_STATES and self._safe_point is not None:
            self._safe_point.release()
        if summary.state == CANCELLED:
            relay = self._settings.open_relay()
            # else other pipelines land, and are registered by the same name
            if relay.last() is None:
                self.cluster.unregister(self._pipeline)
            Consumers(relay).forget(consumer_name(self._settings.downstream_name))


def plan_bootstrap(settings: Settings, request: BootstrapRequest) -> CopyPlan:
    """Return what a bootstrap would do, and in `problems` what hinders it.

    Writes nothing. Raises CopyError, DownstreamError, PDError, TiKVError, EtcdError.
    """
    with BootstrapSession.from_request(settings, request, waits=False) as work:
        return work.plan(request.into)


def run_bootstrap(
    settings: Settings,
    request: BootstrapRequest,
    *,
    make: MakeLoads | None = None,
    on_progress: ShowProgress | None = None,
    runner: Runner | None = None,
) -> BootstrapSummary:
    """Make the settings' downstream a replica, or continue an earlier attempt.

    `make` is Spark by default. Raises as `plan_bootstrap`, and CopyError for what hinders it,
    JobOverlapError, JobRunsError, LeaseLostError, DdlError, WorkerError.
    """
    with BootstrapSession.from_request(settings, request) as work:
        job = work.begin(request)
        return _run(work, job, runner or Runner("a bootstrap"), (make, on_progress))


def resume_bootstrap(
    settings: Settings, job: Job, runner: Runner, on_progress: ShowProgress | None = None
) -> BootstrapSummary:
    """Go on with a bootstrap that was paused, interrupted, or has failed.

    Raises as `run_bootstrap`.
    """
    with BootstrapSession.from_job(settings, job) as work:
        work.hold_gc()
        return _run(work, job, runner, (None, on_progress))


def cancel_bootstrap(settings: Settings, job: Job, runner: Runner) -> BootstrapSummary:
    """Cancel a bootstrap that no process runs: remove what it made downstream.

    What another program wrote there stays. Raises as `run_bootstrap`.
    """
    job.order(CANCEL, str(runner))
    with BootstrapSession.from_job(settings, job) as work, job.run(runner) as run:
        summary = work.run_of(job, run).cancel()
        work.release(summary)
        return summary


def _run(
    work: BootstrapSession,
    job: Job,
    runner: Runner,
    ways: tuple[MakeLoads | None, ShowProgress | None],
) -> BootstrapSummary:
    make, on_progress = ways
    with job.run(runner) as run:
        work.register()
        summary = work.run_of(job, run, on_progress).whole(make or work.loads(on_progress))
    work.release(summary)
    return summary


def _open_source(
    settings: Settings, url: str, options: DumplingOptions, *, waits: bool
) -> RowSource:
    if settings.downstream.type == "file":
        raise CopyError(
            "[downstream] type is file: a copy makes a database a replica, or writes into Kafka"
        )
    if url.startswith("tidb:") and url != TIDB_SCHEME:
        raise CopyError(
            f"{url}: give {TIDB_SCHEME} alone; where TiDB is comes from [upstream] sql-host and"
            " sql-port"
        )
    if url.startswith(SNAPSHOT_SCHEME):
        return _open_snapshot(settings, url.removeprefix(SNAPSHOT_SCHEME))
    if url != TIDB_SCHEME:
        return DumplingFolder.open(url, options)
    return _open_tidb(settings, waits=waits)


def _open_snapshot(settings: Settings, name: str) -> RowSource:
    """Return the snapshot of that name.

    Without a name that of the copy that was begun, else the youngest.
    """
    job = Jobs.for_pipeline(settings.open_relay()).find_open(KIND)
    begun = {} if job is None else BootstrapSpec.from_json(job.spec.asked).source
    if not name and begun.get("kind") == "snapshot" and begun.get("url") == settings.archive_url:
        return SnapshotSource.from_spec(begun)
    return (
        SnapshotSource.open(settings.archive_url, name)
        if name
        else SnapshotSource.latest(settings.archive_url)
    )


def _open_tidb(settings: Settings, *, waits: bool) -> TidbSql:
    """Open TiDB as of now; where a copy from it was begun, as of the time of that."""
    address = TidbAddress.from_settings(settings.upstream)
    job = Jobs.for_pipeline(settings.open_relay()).find_open(KIND)
    begun = {} if job is None else BootstrapSpec.from_json(job.spec.asked).source
    if waits and not begun:
        with SourceCluster.connect(settings.upstream) as cluster:
            cluster.wait_for_pump()
    now = TidbSql.now(address)
    return (
        TidbSql.from_spec(begun)
        if begun == {**now.spec(), "position": begun.get("position")}
        else now
    )

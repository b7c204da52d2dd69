"""A bootstrap with all that belongs to it, as people ask for it: planned, begun or gone on with, given up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Self

from etl.copy.asked import Asked
from etl.copy.base_source import BaseSource
from etl.copy.bootstrap import Bootstrap, begun_job
from etl.copy.bootstrap_run import BootstrapRun, BootstrapSummary, Progress
from etl.copy.cluster import CopiedCluster
from etl.copy.definitions import Definitions
from etl.copy.dumpling import DumplingFolder, DumplingOptions
from etl.copy.errors import CopyError
from etl.copy.gc_hold import GcHold
from etl.copy.hindrances import needed_from, relay_problems
from etl.copy.loads import MakeLoads, SparkLoads
from etl.copy.plan import CopyPlan
from etl.copy.source import Source
from etl.copy.tidb_sql import TidbAddress, TidbSql
from etl.copy.watch import Watch, check_kept
from etl.copy.wish import BootstrapWish
from etl.landing.planner import Planner
from etl.ownership import Pipeline
from etl.settings import Settings
from etl.spark.place import Place
from relay.jobs import CANCEL, CANCELLED, OVER, Job, Jobs, Run, Runner
from relay.retention import Consumers, consumer_name

__all__ = [
    "BASE",
    "TIDB",
    "BootstrapWork",
    "cancel_bootstrap",
    "plan_bootstrap",
    "resume_bootstrap",
    "run_bootstrap",
]

TIDB = "tidb://"
"""In the place of a dump's URL: the TiDB of [upstream] sql-host, as it is when the copy begins."""
BASE = "base://"
"""In the place of a dump's URL: the youngest base of the archive, or with its name behind it another one."""

ShowProgress = Callable[[Progress], None]


class BootstrapWork:
    """What a process that has to do with a bootstrap needs: the cluster, the source, TiDB's GC held back for it."""

    def __init__(
        self, settings: Settings, source: Source, globs: tuple[str, ...], stack: ExitStack, *, with_schema: bool = True
    ) -> None:
        self._settings = settings
        self._source = source
        self._stack = stack
        self._pipeline = Pipeline.of(settings)
        self.cluster = stack.enter_context(CopiedCluster.of(settings.upstream))
        self._hold = (
            GcHold(self.cluster.pd, f"sluice-{self._pipeline.id}", source.position)
            if isinstance(source, TidbSql)
            else None
        )
        position = source.position
        self._needed = needed_from(settings.open_relay(), position)
        definitions = self.cluster.definitions(position) if with_schema else Definitions(position, 0, (), ())
        self.bootstrap = Bootstrap(settings, source, definitions, self.cluster.pd.cluster_id, globs)

    @classmethod
    @contextmanager
    def asked_for(cls, settings: Settings, wish: BootstrapWish) -> Iterator[Self]:
        """To begin what a person asks for. Raises CopyError, PDError, TiKVError, EtcdError."""
        with ExitStack() as stack:
            work = cls(settings, _source(settings, wish.url, wish.options), wish.globs, stack)
            work.hold_gc()
            yield work

    @classmethod
    @contextmanager
    def of_job(cls, settings: Settings, job: Job, *, with_schema: bool = True) -> Iterator[Self]:
        """To go on with a job; `with_schema` unless only rows are copied. Raises CopyError, PDError, TiKVError,
        EtcdError.
        """
        asked = Asked.from_json(job.spec.asked)
        with ExitStack() as stack:
            yield cls(settings, asked.open_source(), asked.tables, stack, with_schema=with_schema)

    def hold_gc(self) -> None:
        """Have TiDB keep what is to be read, as long as this is open. Raises CopyError if it has not, PDError."""
        if self._hold is not None:
            self._stack.enter_context(self._hold)

    def problems(self) -> list[str]:
        """Why the pipeline can't replicate what comes after the source's position; waits until that is known, see
        `CopiedCluster.awaited_problems`.
        """
        return self.cluster.awaited_problems(self._needed, self._pipeline, self._settings.window)

    def plan(self, into: Sequence[str]) -> CopyPlan:
        """What would be done, and what hinders it now. What only time can tell is a note."""
        plan = self.bootstrap.plan(into)
        try:
            found = self.cluster.problems(self._needed, self._pipeline, self._settings.window)
        except CopyError as error:
            if not error.transient:
                raise
            return dataclasses.replace(plan, notes=(*plan.notes, f"{error}. A copy waits for that"))
        return dataclasses.replace(plan, problems=(*plan.problems, *found))

    def begin(self, wish: BootstrapWish) -> Job:
        """The job, see `Bootstrap.begin`."""
        if begun_job(Jobs.of(self._settings.open_relay())) is None and (found := self.problems()):
            plan = self.bootstrap.plan(wish.into)
            raise CopyError("\n".join((*plan.problems, *found)))
        return self.bootstrap.begin(wish.into, wish.by)

    def register(self) -> None:
        """See `CopiedCluster.registered`; it is looked at now and then from here on."""
        self._stack.enter_context(self.cluster.registered(self._pipeline, self._needed, self._settings.window))
        planner = self._stack.enter_context(closing(self.cluster.planner(self._settings.window)))
        self.bootstrap.watch = Watch(lambda: self._look(planner))
        self.bootstrap.watch.now()

    def _look(self, planner: Planner) -> None:
        """What the copy needs is still there, as far as that can be known, and nothing was landed that begins later.
        Raises CopyError.
        """
        if self._hold is not None:
            self._hold.check()
        if found := relay_problems(self._settings.open_relay(), self._source.position):
            raise CopyError(found[0])
        try:
            check_kept(planner, needed_from(self._settings.open_relay(), self._source.position))
        except CopyError as error:
            if not error.transient:  # a pump that doesn't answer is waited for when replication begins
                raise

    def run_of(self, job: Job, run: Run, on_progress: ShowProgress | None = None) -> BootstrapRun:
        """See `Bootstrap.run_of`."""
        return self.bootstrap.run_of(job, run, on_progress)

    def loads(self, on_progress: ShowProgress | None = None) -> MakeLoads:
        """Made on Spark, which is waited for."""
        settings, role = self._settings, self._settings.spark_role("copy")
        spark = SparkLoads(Place(settings.spark, role, settings.relay.url), self._source.spec())
        self._stack.callback(spark.close)
        if on_progress is not None:
            on_progress(Progress(doing=f"waiting for Spark at {self._settings.spark.remote}"))
        spark.connect()
        return spark

    def let_go(self, summary: BootstrapSummary) -> None:
        """Once it is over TiDB's GC goes on; of one that was given up the pumps need keep nothing."""
        if summary.state in OVER and self._hold is not None:
            self._hold.release()
        if summary.state == CANCELLED:
            relay = self._settings.open_relay()
            if relay.last() is None:  # else other pipelines land, and are registered by the same name
                self.cluster.unregister(self._pipeline)
            Consumers(relay).forget(consumer_name(self._settings.downstream_name))


def plan_bootstrap(settings: Settings, wish: BootstrapWish) -> CopyPlan:
    """What a bootstrap would do, and in `problems` what hinders it. Writes nothing. Raises CopyError, DownstreamError,
    PDError, TiKVError, EtcdError.
    """
    with BootstrapWork.asked_for(settings, wish) as work:
        return work.plan(wish.into)


def run_bootstrap(
    settings: Settings,
    wish: BootstrapWish,
    *,
    make: MakeLoads | None = None,
    on_progress: ShowProgress | None = None,
    runner: Runner | None = None,
) -> BootstrapSummary:
    """Make the settings' downstream a replica, or go on with that. `make` is Spark by default. Raises as
    `plan_bootstrap`, and CopyError for what hinders it, JobOverlapError, JobRunsError, LeaseLostError, DdlError,
    WorkerError.
    """
    with BootstrapWork.asked_for(settings, wish) as work:
        job = work.begin(wish)
        return _run(work, job, runner or Runner("a bootstrap"), (make, on_progress))


def resume_bootstrap(
    settings: Settings, job: Job, runner: Runner, on_progress: ShowProgress | None = None
) -> BootstrapSummary:
    """Go on with a bootstrap that was paused, interrupted, or has failed. Raises as `run_bootstrap`."""
    with BootstrapWork.of_job(settings, job) as work:
        work.hold_gc()
        return _run(work, job, runner, (None, on_progress))


def cancel_bootstrap(settings: Settings, job: Job, runner: Runner) -> BootstrapSummary:
    """Give a bootstrap up that no process runs: what it made downstream goes, as far as nobody else wrote there. Raises
    as `run_bootstrap`.
    """
    job.order(CANCEL, str(runner))
    with BootstrapWork.of_job(settings, job) as work, job.run_as(runner) as run:
        summary = work.run_of(job, run).cancel()
        work.let_go(summary)
        return summary


def _run(
    work: BootstrapWork, job: Job, runner: Runner, ways: tuple[MakeLoads | None, ShowProgress | None]
) -> BootstrapSummary:
    make, on_progress = ways
    with job.run_as(runner) as run:
        work.register()
        summary = work.run_of(job, run, on_progress).whole(make or work.loads(on_progress))
    work.let_go(summary)
    return summary


def _source(settings: Settings, url: str, options: DumplingOptions) -> Source:
    if settings.downstream.type != "mysql":
        raise CopyError(
            f"[downstream] type is {settings.downstream.type}: only a database can be made a replica by a copy"
        )
    if url.startswith("tidb:") and url != TIDB:
        raise CopyError(f"{url}: give {TIDB} alone; where TiDB is say [upstream] sql-host and sql-port")
    if url.startswith(BASE):
        return _base(settings, url.removeprefix(BASE))
    return _tidb(settings) if url == TIDB else DumplingFolder.open(url, options)


def _base(settings: Settings, name: str) -> Source:
    """The base of that name; without one that of the copy that was begun, else the youngest."""
    job = begun_job(Jobs.of(settings.open_relay()))
    begun = {} if job is None else Asked.from_json(job.spec.asked).source
    if not name and begun.get("kind") == "base" and begun.get("url") == settings.archive_url:
        return BaseSource.from_spec(begun)
    return BaseSource.named(settings.archive_url, name) if name else BaseSource.latest(settings.archive_url)


def _tidb(settings: Settings) -> TidbSql:
    """TiDB as it is now; where a copy from there was begun, as it was then."""
    address = TidbAddress.of(settings.upstream)
    now = TidbSql.now(address)
    job = begun_job(Jobs.of(settings.open_relay()))
    begun = {} if job is None else Asked.from_json(job.spec.asked).source
    return TidbSql.from_spec(begun) if begun == {**now.spec(), "position": begun.get("position")} else now

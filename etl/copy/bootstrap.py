"""An empty database becomes a replica: databases and tables, rows, indexes, foreign keys, views, last the checkpoint.

Here a bootstrap is planned and becomes a job; how that is run stands in `etl.copy.bootstrap_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from etl.copy.asked import Asked
from etl.copy.bootstrap_run import BootstrapRun, BootstrapSummary, Progress
from etl.copy.definitions import Definitions
from etl.copy.errors import CopyError
from etl.copy.hindrances import downstream_problems, relay_problems
from etl.copy.loads import MakeLoads
from etl.copy.made_tables import MadeTables
from etl.copy.plan import CopyPlan, make_plan
from etl.copy.source import Source
from etl.copy.watch import Watch
from etl.downstream import CheckpointTable, MySQLSession
from etl.ownership import downstream_name
from etl.settings import Settings
from relay.jobs import DONE, OVER, Job, Jobs, Run, Runner, Touches
from relay.retention import Consumers, consumer_name

__all__ = ["KIND", "Bootstrap", "begun_job", "done_job"]

KIND = "bootstrap"


class Bootstrap:
    """One bootstrap of the settings' downstream, which is a database, from a source."""

    indexes_after_bytes = MadeTables.indexes_after_bytes

    def __init__(
        self, settings: Settings, source: Source, definitions: Definitions, cluster_id: int, globs: Sequence[str] = ()
    ) -> None:
        """`definitions`: the upstream's schema at the source's position. `globs`: see `etl.copy.plan.make_plan`."""
        self._settings = settings
        self._source = source
        self._definitions = definitions
        self._globs = tuple(globs)
        self._relay = settings.open_relay()
        self._jobs = Jobs.of(self._relay)
        self._session = MySQLSession(settings.downstream)
        self._checkpoint = CheckpointTable.of(self._session, settings.downstream, cluster_id)
        self._lock = self._checkpoint.writer_lock()
        self.watch = Watch()
        """Looked at while rows are copied, and before the checkpoint is written."""

    def plan(self, into: Sequence[str] = ()) -> CopyPlan:
        """What `run` would do, and in `problems` what hinders it. Nothing is written. `into`: databases downstream that
        may hold other tables. Raises CopyError, DownstreamError.
        """
        begun = begun_job(self._jobs)
        if begun is not None and (kept := begun.plan()) is not None:
            return CopyPlan.from_json(kept)
        done = done_job(self._jobs)
        if done is not None and (kept := done.plan()) is not None and self._is_replica():
            return replace(CopyPlan.from_json(kept), problems=(self._done(done),))
        made = make_plan(
            self._source, self._definitions, self._settings.filters, self._settings.routes, self._globs
        )  # fmt: skip
        self._session.connect()
        try:
            hindered = downstream_problems(self._session, self._checkpoint, made, into)
        finally:
            self._session.close()
        return replace(made, problems=(*made.problems, *hindered, *relay_problems(self._relay, made.ts)))

    def _is_replica(self) -> bool:
        """Whether the downstream has a checkpoint: what a bootstrap has made may have been lost since."""
        self._session.connect()
        try:
            return self._checkpoint.is_there() and self._checkpoint.load() is not None
        finally:
            self._session.close()

    def _done(self, job: Job) -> str:
        return (
            f"the bootstrap of {self._relay.url} is done: its result lies in jobs/{job.id}/result.json. To begin anew,"
            " empty the downstream, checkpoint and all"
        )

    def begin(self, into: Sequence[str] = (), by: str = "") -> Job:
        """The job, with its plan, durably written down before anything is written downstream; that of a process before
        this one if it was asked for the same. Raises CopyError for what hinders it, JobOverlapError.
        """
        asked = Asked(self._source.spec(), self._globs, tuple(into))
        job = begun_job(self._jobs)
        if job is not None and job.spec.asked != asked.to_json():
            raise CopyError(
                f"the job {job.id} of {self._relay.url} was begun for something else, and isn't done:"
                f" {Asked.from_json(job.spec.asked)}. Go on with that one (`sluice jobs resume {job.id}`), or give it"
                f" up: `sluice jobs cancel {job.id}`"
            )
        plan = self.plan(into)
        if plan.problems:
            raise CopyError("\n".join(plan.problems))
        if job is None:
            touched = Touches(downstream_name(self._settings.downstream))
            job = self._jobs.create(KIND, asked.to_json(), touched, by or "somebody")
        job.keep_plan(plan.to_json())
        if len(self._relay.all_pipelines()) > 1:  # the others go on, and so does retention
            where = self._settings.downstream_name
            Consumers(self._relay).note(consumer_name(where), plan.ts, f"the copy that {job.id} makes of {where}")
        return job

    def run(
        self,
        make: MakeLoads,
        into: Sequence[str] = (),
        on_progress: Callable[[Progress], None] | None = None,
    ) -> BootstrapSummary:
        """Do it, or go on with it where a process before this one ended. Raises as `begin` and `BootstrapRun`."""
        job = self.begin(into)
        with job.run_as(Runner("a bootstrap")) as run:
            return self.run_of(job, run, on_progress).whole(make)

    def run_of(self, job: Job, run: Run, on_progress: Callable[[Progress], None] | None = None) -> BootstrapRun:
        """A run of the job, to be done in this process."""
        place = self._settings, self._definitions, self._checkpoint, self._session
        made = BootstrapRun(place, job, run, on_progress or (lambda _: None))
        made.tables.indexes_after_bytes = self.indexes_after_bytes
        made.watch = self.watch
        return made


def begun_job(jobs: Jobs) -> Job | None:
    """The bootstrap that isn't over; None if there is none."""
    return next((job for job in _bootstraps(jobs) if job.entry().state not in OVER), None)


def done_job(jobs: Jobs) -> Job | None:
    """The last bootstrap that is done; None if there is none."""
    return next((job for job in reversed(_bootstraps(jobs)) if job.entry().state == DONE), None)


def _bootstraps(jobs: Jobs) -> list[Job]:
    return [job for job in jobs.list() if job.spec.kind == KIND]

"""Plan a bootstrap, which makes an empty database a replica, and make it a job.

It brings databases and tables, rows, indexes, foreign keys, views, last the checkpoint. How the
job is run stands in `sluice.etl.copy.bootstrap_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sluice.etl.copy.bootstrap_run import BootstrapRun, BootstrapSummary, CopyProgressCounts
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.plan import CopyPlan, make_copy_plan
from sluice.etl.copy.preconditions import PreconditionMonitor
from sluice.etl.copy.preflight import downstream_problems, relay_problems
from sluice.etl.copy.source import RowSource
from sluice.etl.copy.sources import BootstrapSpec
from sluice.etl.copy.spark_loads import MakeLoads
from sluice.etl.copy.table_creator import TableCreator
from sluice.etl.downstream import CheckpointTable, MySQLSession
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.settings import Settings
from sluice.relay.consumers import Consumers, consumer_name
from sluice.relay.jobs import DONE, Job, JobRun, Jobs, Runner, WriteScope

__all__ = ["KIND", "BootstrapPlanner", "find_finished_job"]

KIND = "bootstrap"


class BootstrapPlanner:
    """One bootstrap of the settings' downstream, which is a database, from a source."""

    indexes_after_bytes = TableCreator.indexes_after_bytes

    def __init__(
        self,
        settings: Settings,
        source: RowSource,
        definitions: SourceSchema,
        cluster_id: int,
        globs: Sequence[str] = (),
    ) -> None:
        """Prepare to plan; `definitions`: the upstream's schema at the source's position.

        `globs`: as `make_copy_plan` has it.
        """
        self._settings = settings
        self._source = source
        self._definitions = definitions
        self._globs = tuple(globs)
        self._relay = settings.open_relay()
        self._jobs = Jobs.for_pipeline(self._relay)
        self._session = MySQLSession(settings.downstream)
        self._checkpoint = CheckpointTable.from_settings(
            self._session, settings.downstream, cluster_id
        )
        self._lock = self._checkpoint.writer_lock()
        self.watch = PreconditionMonitor()
        """Looked at while rows are copied, and before the checkpoint is written."""

    def plan(self, into: Sequence[str] = ()) -> CopyPlan:
        """Return what `run` would do, and in `problems` what hinders it.

        Nothing is written. `into`: databases downstream that may hold other tables. Raises
        CopyError, DownstreamError.
        """
        begun = self._jobs.find_open(KIND)
        if begun is not None and (plan := begun.plan()) is not None:
            return CopyPlan.from_json(plan)
        done = find_finished_job(self._jobs)
        if done is not None and (plan := done.plan()) is not None and self._is_replica():
            return replace(CopyPlan.from_json(plan), problems=(self._done(done),))
        made = make_copy_plan(
            self._source,
            self._definitions,
            self._settings.filters,
            self._settings.routes,
            self._globs,
        )
        self._session.connect()
        try:
            hindered = downstream_problems(self._session, self._checkpoint, made, into)
        finally:
            self._session.close()
        return replace(
            made, problems=(*made.problems, *hindered, *relay_problems(self._relay, made.ts))
        )

    def _is_replica(self) -> bool:
        """Return whether the downstream has a checkpoint: a replica may be lost since."""
        self._session.connect()
        try:
            return self._checkpoint.exists() and self._checkpoint.load() is not None
        finally:
            self._session.close()

    def _done(self, job: Job) -> str:
        return (
            f"the bootstrap of {self._relay.url} is done: its result lies in"
            f" jobs/{job.id}/result.json. To start over, empty the downstream, checkpoint and all"
        )

    def begin(self, into: Sequence[str] = (), by: str = "") -> Job:
        """Return the job, with its plan, written durably before anything goes downstream.

        The job of an earlier process is returned if its request is the same. Raises CopyError for
        what hinders it, JobOverlapError.
        """
        asked = BootstrapSpec(self._source.spec(), self._globs, tuple(into))
        job = self._jobs.find_open(KIND)
        if job is not None and job.spec.asked != asked.to_json():
            raise CopyError(
                f"the job {job.id} of {self._relay.url} was begun for something else, and isn't"
                f" done: {BootstrapSpec.from_json(job.spec.asked)}. Go on with that one (`sluice"
                f" jobs resume {job.id}`), or give it up: `sluice jobs cancel {job.id}`"
            )
        plan = self.plan(into)
        if plan.problems:
            raise CopyError("\n".join(plan.problems))
        if job is None:
            touched = WriteScope(downstream_name(self._settings.downstream))
            job = self._jobs.create(KIND, asked.to_json(), touched, by or "somebody")
        job.save_plan(plan.to_json())
        if len(self._relay.all_pipelines()) > 1:  # the others go on, and so does retention
            where = self._settings.downstream_name
            Consumers(self._relay).note(
                consumer_name(where), plan.ts, f"the copy that {job.id} makes of {where}"
            )
        return job

    def run(
        self,
        make: MakeLoads,
        into: Sequence[str] = (),
        on_progress: Callable[[CopyProgressCounts], None] | None = None,
    ) -> BootstrapSummary:
        """Run the job, or continue it where an earlier process ended.

        Raises as `begin` and `BootstrapRun`.
        """
        job = self.begin(into)
        with job.run(Runner("a bootstrap")) as run:
            return self.run_of(job, run, on_progress).whole(make)

    def run_of(
        self, job: Job, run: JobRun, on_progress: Callable[[CopyProgressCounts], None] | None = None
    ) -> BootstrapRun:
        """Return a run of the job, to be done in this process."""
        place = self._settings, self._definitions, self._checkpoint, self._session
        made = BootstrapRun(place, job, run, on_progress or (lambda _: None))
        made.tables.indexes_after_bytes = self.indexes_after_bytes
        made.watch = self.watch
        return made


def find_finished_job(jobs: Jobs) -> Job | None:
    """Return the last bootstrap that is done; None if there is none."""
    return next(
        (
            job
            for job in reversed(jobs.list())
            if job.spec.kind == KIND and job.entry().state == DONE
        ),
        None,
    )

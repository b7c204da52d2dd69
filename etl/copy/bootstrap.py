"""Plan a bootstrap, which makes an empty database a replica, and make it a job.

It brings databases and tables, rows, indexes, foreign keys, views, last the checkpoint. How the
job is run stands in `sluice.etl.copy.bootstrap_run`. Into topics it brings rows and the checkpoint:
`sluice.etl.copy.topics_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

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
from sluice.etl.settings import Kafka, Settings
from sluice.relay.consumers import Consumers, consumer_name
from sluice.relay.jobs import DONE, Job, JobRun, Jobs, Runner, WriteScope
from sluice.tidb.table_name import TableName

if TYPE_CHECKING:
    from sluice.etl.copy.topics_run import TopicsCopyRun

__all__ = ["KIND", "BootstrapPlanner", "find_finished_job"]

KIND = "bootstrap"


class BootstrapPlanner:
    """One bootstrap of the settings' downstream, a database or topics, from a source."""

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
        self._goal: _Database | _Topics = (
            _Topics(settings, cluster_id)
            if isinstance(settings.target, Kafka)
            else _Database(settings, definitions, cluster_id)
        )
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
        if done is not None and (plan := done.plan()) is not None and self._goal.is_replica():
            return replace(CopyPlan.from_json(plan), problems=(self._done(done),))
        made = make_copy_plan(
            self._source,
            self._definitions,
            self._settings.filters,
            self._settings.routes,
            self._globs,
        )
        hindered = self._goal.problems(made, into)
        found = (*made.problems, *hindered, *relay_problems(self._relay, made.ts))
        rowless = made.rowless if self._goal.has_views else ()
        return replace(made, problems=found, rowless=rowless)

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
            touched = WriteScope(downstream_name(self._settings.target))
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
    ) -> BootstrapRun | TopicsCopyRun:
        """Return a run of the job, to be done in this process."""
        made = self._goal.run_of(job, run, on_progress or (lambda _: None))
        if isinstance(made, BootstrapRun):
            made.tables.indexes_after_bytes = self.indexes_after_bytes
        made.watch = self.watch
        return made


class _Database:
    """A database that a bootstrap makes a replica."""

    has_views = True

    def __init__(self, settings: Settings, definitions: SourceSchema, cluster_id: int) -> None:
        self._settings = settings
        self._definitions = definitions
        self._session = MySQLSession(settings.downstream)
        self._checkpoint = CheckpointTable.from_settings(
            self._session, settings.downstream, cluster_id
        )

    def problems(self, plan: CopyPlan, into: Sequence[str]) -> list[str]:
        """Return why it isn't as empty as it must be. Raises DownstreamError."""
        self._session.connect()
        try:
            return downstream_problems(self._session, self._checkpoint, plan, into)
        finally:
            self._session.close()

    def is_replica(self) -> bool:
        """Return whether the downstream has a checkpoint: a replica may be lost since."""
        self._session.connect()
        try:
            return self._checkpoint.exists() and self._checkpoint.load() is not None
        finally:
            self._session.close()

    def run_of(
        self, job: Job, run: JobRun, on_progress: Callable[[CopyProgressCounts], None]
    ) -> BootstrapRun:
        place = self._settings, self._definitions, self._checkpoint, self._session
        return BootstrapRun(place, job, run, on_progress)


class _Topics:
    """Topics that a bootstrap fills with a snapshot."""

    has_views = False

    def __init__(self, settings: Settings, cluster_id: int) -> None:
        self._settings = settings
        self._cluster_id = cluster_id

    def problems(self, plan: CopyPlan, into: Sequence[str]) -> list[str]:
        """Return why a snapshot can't be written there.

        Raises KafkaUnavailableError, ApplyError.
        """
        # Kafka's client is for those who have topics alone
        from sluice.etl.downstream.sinks.kafka_copy import copy_problems

        names = [TableName(planned.schema, planned.name) for planned in plan.tables]
        found = [f"--into {name}: topics have no databases" for name in into]
        for place, planned in enumerate(plan.tables):
            lacking = [
                column.name
                for column in planned.table.stored_columns
                if column.generated and not column.hidden and column.name not in planned.brought
            ]
            if lacking and place in plan.of_table:
                found.append(
                    f"{planned.table.full_name}: the source has no values of the generated columns"
                    f" {', '.join(lacking)}, which messages show. Copy from tidb://, or leave the"
                    " table out with [filter] ignore-table"
                )
        return [*found, *copy_problems(self._settings.kafka, self._cluster_id, names)]

    def is_replica(self) -> bool:
        """Return whether the pipeline's topics have been written."""
        from sluice.etl.downstream.sinks.kafka import is_unused

        return not is_unused(self._settings.kafka, self._cluster_id)

    def run_of(
        self, job: Job, run: JobRun, on_progress: Callable[[CopyProgressCounts], None]
    ) -> TopicsCopyRun:
        from sluice.etl.copy.topics_run import TopicsCopyRun

        return TopicsCopyRun(self._settings, self._cluster_id, job, run, on_progress)


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

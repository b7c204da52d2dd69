"""The jobs of a relay log: what takes long and what a person asks for.

jobs = Jobs.for_pipeline(relay)
job = jobs.create("bootstrap", asked, WriteScope(downstream), by="ann@host")
with job.run(Runner("sluice bootstrap")) as run:
    run.set_totals(tables)
    try:
        for chunk in chunks:
            run.check_order()
            run.did(table, JobCounts(rows, bytes, 1))
    except StopRequested:
        run.end(CANCELLED if run.order == CANCEL else PAUSED)
    else:
        run.end(DONE, result={...})
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any, Protocol

from sluice.relay.errors import RelayCorruptError
from sluice.relay.jobs.errors import JobError, JobOverlapError
from sluice.relay.jobs.job import Job
from sluice.relay.jobs.job_files import JobFiles
from sluice.relay.jobs.open_jobs import OpenJobs, open_register
from sluice.relay.jobs.spec import MAX_NAMES_SHOWN, JobSpec, WriteScope
from sluice.relay.jobs.state_log import (
    FINAL_STATES,
)
from sluice.relay.storage import Storage
from sluice.tidb.table_name import abbreviate

__all__ = ["Jobs"]


class PipelineRelay(Protocol):
    """A relay log as one of its pipelines sees it."""

    @property
    def storage(self) -> Storage: ...

    @property
    def pipeline(self) -> str: ...


class Jobs:
    """The jobs in a relay log's storage. Every method raises RelayCorruptError, OSError."""

    def __init__(self, storage: Storage, pipeline: str | None = None) -> None:
        """Open the jobs of a relay log.

        `pipeline`: of several that read the relay log, the one to which the jobs belong
        (`sluice.relay.pipeline_folders`); None: all. In either case jobs that touch the same tables
        are kept apart, and no two have the same id.
        """
        self._storage = storage
        self._pipeline = pipeline
        self._register = open_register(storage)

    @classmethod
    def for_pipeline(cls, relay: PipelineRelay) -> Jobs:
        """Open the jobs of the pipeline as which a relay log is open."""
        return cls(relay.storage, relay.pipeline)

    def create(self, kind: str, asked: Mapping[str, Any], touches: WriteScope, by: str) -> Job:
        """Record a new job durably.

        `asked`: the request, in the kind's own terms; `by`: the person or program that asks. Raises
        JobOverlapError if a job that isn't over touches the same; of two concurrent requests one is
        refused.
        """
        token, now = secrets.token_hex(8), time.time_ns() // 1_000_000

        def added(jobs: OpenJobs) -> OpenJobs:
            over = [other.id for other in jobs.open if self._in_the_way(other, touches)]
            return jobs.without(*over).with_job(
                JobSpec(
                    jobs.next_id(kind), kind, asked, touches, by, now, token, self._pipeline or ""
                )
            )

        after = self._register.change(added)
        spec = next(spec for spec in after.open if spec.token == token)
        job = self._job(spec)
        job.files.write_spec()
        return job

    def unfinished(self) -> list[Job]:
        """Return the jobs that aren't over, oldest first, also those that touch nothing."""
        return [job for job in self._unfinished() if self._is_own(job.spec)]

    def find_open(
        self,
        kind: str,
        asked: Mapping[str, Any] | None = None,
        *,
        planned: bool = False,
    ) -> Job | None:
        """Return the oldest unfinished job of a kind that was asked for the same, or None.

        `asked`: as `JobSpec.is_same`; None for whatever was asked. `planned`: only a job whose
        plan is saved.
        """
        found = (
            job
            for job in self.unfinished()
            if job.spec.kind == kind and (asked is None or job.spec.is_same(asked))
        )
        return next((job for job in found if not planned or job.plan() is not None), None)

    def _unfinished(self) -> list[Job]:
        found = (self._job(spec) for spec in self._register.load().open)
        return [job for job in found if job.entry().state not in FINAL_STATES]

    def overlapping(self, touches: WriteScope) -> list[Job]:
        """Return the jobs of all pipelines that aren't over and touch the same, oldest first."""
        return [job for job in self._unfinished() if job.spec.touches.shared(touches) != ()]

    def get(self, name: str) -> Job:
        """Return the job with this id.

        Raises JobError if there is none, or if it is another pipeline's.
        """
        job = self.find(name)
        if job is None:
            raise JobError(f"there is no job {name} in {self._storage.url}")
        if not self._is_own(job.spec):
            owner = job.spec.pipeline
            raise JobError(
                (
                    f"the job {name} is the pipeline {owner}'s"
                    if owner
                    else f"the job {name} is of the pipeline without a name"
                ),
                hint=f"`--pipeline {owner}`" if owner else "leave --pipeline away",
            )
        return job

    def _is_own(self, spec: JobSpec) -> bool:
        return self._pipeline is None or spec.pipeline == self._pipeline

    def find(self, name: str) -> Job | None:
        """Return the job with this id, None if there is none."""
        path = f"jobs/{name}/spec.json"
        try:
            return self._job(JobSpec.from_bytes(self._storage.read(path)))
        except FileNotFoundError:
            open_now = {spec.id: spec for spec in self._register.load().open}
            return self._job(open_now[name]) if name in open_now else None
        except ValueError as error:
            raise RelayCorruptError(
                f"{self._storage.url}/{path}: {error}", hint="restore the file from a copy"
            ) from None

    def is_over(self, name: str) -> bool:
        """Return whether nothing more comes of the job with this id; so it is if there is none."""
        job = self.find(name)
        return job is None or job.entry().state in FINAL_STATES

    def names(self) -> list[str]:
        """Return the ids of all jobs, in no order; an id may turn out to have no job."""
        return [
            *dict.fromkeys(
                [*self._storage.names("jobs"), *(spec.id for spec in self._register.load().open)]
            )
        ]

    def list(self) -> list[Job]:
        """Return all entries, oldest first."""
        found = [
            job
            for name in self.names()
            if (job := self.find(name)) is not None and self._is_own(job.spec)
        ]
        return sorted(found, key=lambda job: (job.spec.made_ms, job.id))

    def forget(self, name: str) -> None:
        """Remove what is written down about a job that is over.

        Raises JobError if it isn't, or if there is none.
        """
        job = self.get(name)
        if job.entry().state not in FINAL_STATES:
            raise JobError(
                f"the job {job.spec} is {job.status().state}, and isn't over",
                hint=f"`sluice jobs cancel {name}`",
            )
        self._register.change(lambda jobs: jobs.without(name))
        job.files.remove()

    def _in_the_way(self, other: JobSpec, touches: WriteScope) -> bool:
        """Return whether a job of the list has nothing to be there for.

        Raises JobOverlapError if it is in the way.
        """
        job = self._job(other)
        if job.entry().state in FINAL_STATES:
            return True
        shared = other.touches.shared(touches)
        if shared == ():
            return False
        what = "the whole downstream" if shared is None else abbreviate(shared, MAX_NAMES_SHOWN)
        raise JobOverlapError(
            f"{what} is touched by the job {other}, which is {job.status().state}",
            hint=(
                f"wait until it is over (`sluice jobs show {other.id}`), or `sluice jobs cancel"
                f" {other.id}`"
            ),
        )

    def _job(self, spec: JobSpec) -> Job:
        return Job(JobFiles(self._storage, spec, self._register))

"""Plan a backfill, write it down as a job, run or resume it, and end it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sluice.errors import SluiceError
from sluice.etl.copy.backfill.backfill_job import BackfillEndpoints, BackfillJob
from sluice.etl.copy.backfill.downstream_session import BackfillDownstream
from sluice.etl.copy.backfill.extent import with_sizes_of_replica
from sluice.etl.copy.backfill.plan import BackfillPlan, make_backfill_plan
from sluice.etl.copy.backfill.reader import ReadChunk, ReadChunks, ReadRequest, ReadResult
from sluice.etl.copy.backfill.request import BackfillRequest
from sluice.etl.copy.backfill.table_repairs import end_repairs
from sluice.etl.copy.backfill.upstream_catalog import UpstreamCatalog
from sluice.etl.copy.errors import BackfillError
from sluice.etl.copy.rule_changes import end_outdated, have_rules_changed
from sluice.etl.copy.tidb_session import TidbAddress
from sluice.etl.downstream.ownership import PipelineIdentity
from sluice.etl.settings import Settings
from sluice.etl.spark.job_calls import JobCalls
from sluice.etl.spark.session_target import SessionTarget
from sluice.relay import RelayLog
from sluice.relay.jobs import (
    CANCEL,
    CANCELLED,
    DONE,
    PAUSED,
    Job,
    Jobs,
    Runner,
    StopRequested,
    WriteScope,
)
from sluice.relay.rule_changes import RuleChanges

_READ_TIMEOUT_S = 600.0
_RULES_TIMEOUT_S = 60.0
"""A resumed pipeline applies again within it, by the settings as they are then."""
_RULES_INTERVAL_S = 0.5

log = logging.getLogger("sluice.backfill")
KIND = "backfill"
_COUNTERS = (
    "rows",
    "same",
    "inserted",
    "replaced",
    "deleted",
    "displaced",
    "kept",
    "chunks",
    "bytes",
)


class SparkChunkReader:
    """Read chunks on a Spark Connect server."""

    def __init__(self, place: SessionTarget, address: TidbAddress) -> None:
        """Create the Spark chunk reader; `place`: on the relay log, where the rows go."""
        function = ReadChunks(address.to_json(), place.url)
        self._calls = JobCalls(place, function, _READ_TIMEOUT_S)

    def __call__(self, order: ReadRequest) -> ReadResult:
        (text,) = self._calls([json.dumps(order.to_json())])
        return ReadResult.from_json(json.loads(text))

    def close(self) -> None:
        """Close the connection; the session stays on the server."""
        self._calls.close()


def remove_orphans(relay: RelayLog, downstream: BackfillDownstream) -> None:
    """Remove it.

    What hinders that is logged: it hinders nothing else, and the next job tries again.
    """
    is_over = Jobs(relay.storage).is_over
    try:
        relay.aligned_chunks.sweep(is_over)
        downstream.sweep(is_over)
    except (SluiceError, OSError) as error:
        log.warning("leftovers of former jobs stay until the next job: %s", error)


@dataclass(frozen=True, slots=True)
class BackfillSummary:
    """The end of a run.

    `state`: as in `sluice.relay.jobs.STATES`; `tables`: counts by name, see
    `sluice.etl.downstream.chunk_results.ChunkResult`, and `examples` of what differed.
    """

    job: str
    state: str
    mode: str
    tables: Mapping[str, Mapping[str, Any]]
    seconds: float
    warnings: tuple[str, ...] = field(default=())

    def total(self, name: str) -> int:
        """Return the sum of a count over all tables."""
        return sum(int(table[name]) for table in self.tables.values())

    @property
    def differing(self) -> int:
        """Return the number of rows that differed from the upstream's, on either side, before."""
        return sum(self.total(name) for name in ("inserted", "replaced", "deleted", "kept"))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON values, for scripts."""
        return {
            "job": self.job,
            "state": self.state,
            "mode": self.mode,
            "differing": self.differing,
            "total": {name: self.total(name) for name in _COUNTERS},
            "tables": {name: dict(counts) for name, counts in self.tables.items()},
            "seconds": self.seconds,
            "warnings": list(self.warnings),
        }


class _BackfillContext:
    """A pipeline: where it comes from, where it goes, and its relay log."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        if settings.downstream.type != "mysql":
            raise BackfillError(
                f"[downstream] type is {settings.downstream.type}: only a database can be"
                " backfilled"
            )
        self.settings = settings
        self.relay = settings.open_relay()
        self.jobs = Jobs.for_pipeline(self.relay)
        self.upstream = stack.enter_context(UpstreamCatalog.connect(settings))
        self.downstream = BackfillDownstream(settings, self.upstream.cluster_id)
        stack.callback(self.downstream.close)

    @classmethod
    @contextmanager
    def open(cls, settings: Settings) -> Iterator[Self]:
        """Open the context. Raises BackfillError for a downstream that is no database."""
        with ExitStack() as stack:
            yield cls(settings, stack)

    def plan(self, request: BackfillRequest) -> BackfillPlan:
        request.check()
        checkpoint = self.downstream.checkpoint()
        definitions = self.upstream.definitions(self.upstream.now())
        rules = self.settings.filters, self.settings.routes
        plan = make_backfill_plan(
            request, definitions, rules, self.upstream, self.downstream.columns()
        )
        if any(not table.rows for table in plan.tables):
            plan = with_sizes_of_replica(plan, self.downstream.sizes())
        problems = [*plan.problems, *self._is_stalled()]
        if checkpoint is None:
            problems.append(
                f"{self.downstream.address} has no checkpoint: it is no replica yet. `sluice"
                " bootstrap` makes it one"
            )
        if self._has_other_rules():
            problems.append(
                "the settings have other rules than the process that applies: `sluice pause apply`"
                " and `sluice resume apply` make it read them"
            )
        problems += [
            f"the job {job.spec} isn't over: wait for it, or `sluice jobs cancel {job.id}`"
            for job in self.jobs.overlapping(self.touches(plan))
        ]
        return replace(plan, problems=tuple(problems), notes=(*plan.notes, *self._stopped()))

    def touches(self, plan: BackfillPlan) -> WriteScope:
        return WriteScope(
            PipelineIdentity.from_settings(self.settings).downstream,
            tuple(table.target for table in plan.tables),
        )

    def wait_for_rules(self) -> None:
        """Wait until the process that applies has the settings' rules, up to `_RULES_TIMEOUT_S`.

        What it applies by former ones while chunks are written would stay as those leave it.
        """
        deadline = time.monotonic() + _RULES_TIMEOUT_S
        while self._has_other_rules() and time.monotonic() < deadline:
            if self._is_stalled():
                return
            time.sleep(_RULES_INTERVAL_S)

    def _has_other_rules(self) -> bool:
        return have_rules_changed(self.settings, RuleChanges(self.relay.place).load())

    def sweep(self) -> None:
        """Remove leftovers of finished jobs."""
        remove_orphans(self.relay, self.downstream)

    def _is_stalled(self) -> list[str]:
        """Return why applying would not come to a chunk."""
        control = self.relay.control()
        found = []
        if control.land_paused or control.apply_paused:
            found.append(
                "the pipeline is paused, and chunks are written while it runs: `sluice resume`"
                " first"
            )
        if control.apply_until_ts is not None:
            found.append(
                f"applying is to stop at {control.apply_until_ts} (`sluice run-until`): `sluice"
                " resume` first"
            )
        return found

    def _stopped(self) -> list[str]:
        """Describe the tasks that have stopped for good.

        That may be for a table that isn't there yet: the job makes it.
        """
        return [
            f"{failure.what} has stopped, and chunks wait until it goes on: {failure.message}"
            for failure in self.relay.failures.list()
        ]


def plan_backfill(settings: Settings, request: BackfillRequest) -> BackfillPlan:
    """Return what a backfill would do, and in `problems` what hinders it.

    Writes nothing. Raises BackfillError, CopyError, DownstreamError, PDError, TiKVError,
    RelayError.
    """
    with _BackfillContext.open(settings) as place:
        return place.plan(request)


def create_backfill(settings: Settings, request: BackfillRequest, by: str) -> Job:
    """Write down that a backfill is to be done; `by`: the user it is done for.

    Raises as `plan_backfill`, BackfillError for what hinders it, JobOverlapError.
    """
    with _BackfillContext.open(settings) as place:
        place.wait_for_rules()
        plan = place.plan(request)
        if plan.problems:
            raise BackfillError("\n".join(plan.problems))
        job = place.jobs.create(KIND, request.to_json(), place.touches(plan), by)
        job.save_plan(plan.to_json())
        return job


def run_backfill(
    settings: Settings, job_id: str, runner: Runner, *, read: ReadChunk | None = None
) -> BackfillSummary:
    """Run a job of `create_backfill`, or resume it, until it is over or an operator pauses it.

    `read` is on Spark by default. Raises as `create_backfill`, JobRunsError, LeaseLostError,
    DdlError, SparkError.
    """
    began = time.monotonic()
    with _BackfillContext.open(settings) as place, ExitStack() as stack:
        job = place.jobs.get(job_id)
        request, plan = _request_of(job)
        if read is None:
            on_spark = SessionTarget(
                settings.spark.for_batch(), settings.spark_role("backfill"), settings.relay.url
            )
            spark = SparkChunkReader(on_spark, place.upstream.address)
            stack.callback(spark.close)
            read = spark
        run = stack.enter_context(job.run(runner))
        place.sweep()
        sides = BackfillEndpoints(
            place.upstream,
            place.downstream,
            place.relay.aligned_chunks,
            place.relay.storage,
            read,
            settings.rules,
        )
        work = BackfillJob(request, plan, sides, job.id, run)
        state = _run_job(work)
        result = work.result
        seconds = round(time.monotonic() - began, 3)
        summary = BackfillSummary(
            job.id, state, request.mode, result["tables"], seconds, tuple(result["warnings"])
        )
        if state == PAUSED:
            run.end(PAUSED, message="paused by an order")
            return summary
        message = _clean_up(place, job, state)
        if state == DONE and request.is_whole:
            names = {table.name for table in plan.tables}
            end_outdated(settings, place.relay, names, job.spec.made_ms)
        run.end(state, message=message, result=summary.to_json())
        place.sweep()
        return summary


def cancel_backfill(settings: Settings, job_id: str, runner: Runner) -> str:
    """Cancel a job that no process runs; return what it leaves behind, for people ("": nothing).

    Raises as `run_backfill`.
    """
    with _BackfillContext.open(settings) as place:
        job = place.jobs.get(job_id)
        with job.run(runner) as run:
            message = _clean_up(place, job, CANCELLED)
            run.end(CANCELLED, message=message)
        place.sweep()
    return message


def _request_of(job: Job) -> tuple[BackfillRequest, BackfillPlan]:
    plan = job.plan_of_kind(KIND)  # before what was asked is understood: it may be another kind's
    return BackfillRequest.from_json(job.spec.asked), BackfillPlan.from_json(plan)


def _run_job(work: BackfillJob) -> str:
    try:
        work.work()
    except StopRequested as stop:
        return CANCELLED if stop.order == CANCEL else PAUSED
    return DONE


def _clean_up(place: _BackfillContext, job: Job, state: str) -> str:
    """Remove what only the running job needs; what a cancelled one leaves behind, for people."""
    storage = place.relay.storage
    mended = list(end_repairs(place.relay.aligned_chunks, job.id))
    for name in storage.names(f"jobs/{job.id}/rows"):
        if state == DONE:
            storage.remove(f"jobs/{job.id}/rows/{name}")
    if not mended:
        return ""
    return (
        "not all of the tables was copied: where rows are missing downstream, applying stops at the"
        " first change of one. Ask for the rest again"
    )

"""Bases as jobs: planned, written down, made or gone on with, given up."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from errors import Signal
from etl.base.chunk_writer import TIMEOUT_S, MakeFiles, WriteChunks, Written
from etl.base.downstream_reader import DownstreamSnapshot, TableChanged
from etl.base.errors import BaseError
from etl.base.from_downstream import Stripe, read_stripes, stripes_of
from etl.base.from_source import SourceRows
from etl.base.hindrances import downstream_tables, hindrances, some
from etl.base.place import BasePlace
from etl.base.plan import BasePlan, done_of, schemas_of, table_of, with_files
from etl.base.request import ARCHIVE, DOWNSTREAM, BaseWish
from etl.base.rolled import ROLLED_BYTES, past_of, rolling
from etl.base.unchanged import ids_of
from etl.copy.gc_hold import GcHold
from etl.copy.sources import place_of
from etl.downstream import MySQLSession
from etl.ownership import Pipeline
from etl.settings import Settings
from etl.spark.calls import SparkCalls
from etl.spark.place import Place
from relay.archive import Base, BaseFile, BaseTable, Making, base_id
from relay.jobs import CANCEL, CANCELLED, DONE, PAUSED, Done, Job, Run, Runner, TableProgress

__all__ = ["KIND", "BaseSummary", "cancel_base", "create_base", "plan_base", "run_base"]

log = logging.getLogger("sluice.base")

KIND = "base"
_TRIES = 5
"""How often the downstream is read anew after a DDL has changed what was to be read."""


@dataclass(frozen=True, slots=True)
class BaseSummary:
    """How a run ended. `base`: its name, "" if it isn't made; `referred`: how many tables' rows lie in older bases;
    `copied_rows`, `copied_bytes` (in memory) what was written for it.
    """

    job: str
    state: str
    base: str = ""
    ts: int = 0
    tables: int = 0
    referred: int = 0
    rows: int = 0
    file_bytes: int = 0
    copied_rows: int = 0
    copied_bytes: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for scripts."""
        return asdict(self)

    @classmethod
    def of(cls, job: str, base: Base, began: float) -> BaseSummary:
        """Of one that is made."""
        own = [file for table in base.tables for file in table.files if file.path.split("/")[1] == base.id]
        others = [table for table in base.tables if table.files and table.files[0] not in own]
        return cls(
            job, DONE, base.id, base.ts, len(base.tables), len(others), base.rows, base.file_bytes,
            sum(file.rows for file in own), sum(file.row_bytes for file in own), round(time.monotonic() - began, 3),
        )  # fmt: skip


class _Ordered(Signal):
    """The job is to pause, or to be cancelled."""


def plan_base(settings: Settings, wish: BaseWish) -> BasePlan:
    """What making a base would do, and in `problems` what hinders it. Writes nothing. Raises as `BasePlace`."""
    with BasePlace.of(settings) as place:
        return place.plan(place.chosen(wish))


def create_base(settings: Settings, wish: BaseWish, by: str) -> Job:
    """Write down that a base is to be made; `by` whom it was asked for. Raises as `plan_base`, BaseError for what
    hinders it.
    """
    with BasePlace.of(settings) as place:
        chosen = place.chosen(wish)
        plan = place.plan(chosen)
        if plan.problems:
            raise BaseError(some(plan.problems))
        job = place.jobs.create(KIND, chosen.to_json(), place.touches, by)
        job.keep_plan(plan.to_json())
        return job


def run_base(settings: Settings, job_id: str, runner: Runner, *, make: MakeFiles | None = None) -> BaseSummary:
    """Run a job that `create_base` made, or go on with it, until it is over, or an operator pauses it. `make` is Spark
    by default. Raises as `plan_base`, JobRunsError, LeaseLostError, SparkError.
    """
    with BasePlace.of(settings) as place:
        job = place.jobs.get(job_id)
        wish, plan = _asked(job)
        with job.run_as(runner) as run:
            return _Making(place, job, run, plan).made(wish, make)


def cancel_base(settings: Settings, job_id: str, runner: Runner) -> BaseSummary:
    """Give up a job that no process runs; nothing of it stays. Raises as `run_base`."""
    with BasePlace.of(settings) as place:
        job = place.jobs.get(job_id)
        with job.run_as(runner) as run:
            _forget(place, job.id)
            run.end(CANCELLED)
        return BaseSummary(job.id, CANCELLED)


def _asked(job: Job) -> tuple[BaseWish, BasePlan]:
    plan = job.kept_plan(KIND)  # before what was asked is understood: it may be another kind's
    return BaseWish.from_json(job.spec.asked), BasePlan.from_json(plan)


def _forget(place: BasePlace, job: str, *, but: str = "") -> None:
    """Remove what a job has begun to make, and what jobs that are over have left behind."""
    for name in place.bases.ids():
        note = place.bases.making(name)
        if note is not None and name != but and (note.job == job or place.jobs.is_over(note.job)):
            place.bases.forget(name)


class _Making:
    """A run of the job."""

    def __init__(self, place: BasePlace, job: Job, run: Run, plan: BasePlan) -> None:
        self._place = place
        self._job = job
        self._run = run
        self._plan = plan
        self._storage = place.archive.storage
        self._began = time.monotonic()

    def made(self, wish: BaseWish, make: MakeFiles | None) -> BaseSummary:
        """Make it, or do as was ordered."""
        try:
            base = self._from_downstream(wish) if wish.source == DOWNSTREAM else self._from_source(make)
        except _Ordered:
            return self._stop()
        summary = BaseSummary.of(self._job.id, base, self._began)
        self._run.end(DONE, result=summary.to_json())
        return summary

    def _stop(self) -> BaseSummary:
        if self._run.order == CANCEL:
            _forget(self._place, self._job.id)
            self._run.end(CANCELLED)
            return BaseSummary(self._job.id, CANCELLED)
        self._run.end(PAUSED, said="paused by an order")
        return BaseSummary(self._job.id, PAUSED)

    def _go_on(self) -> bool:
        self._run.check()
        return self._run.order is None

    def _check_order(self) -> None:
        if not self._go_on():
            raise _Ordered

    def _doing(self, what: str) -> None:
        self._check_order()
        self._run.doing(what)

    # From a source

    def _from_source(self, make: MakeFiles | None) -> Base:
        plan = self._plan
        if (found := self._place.bases.find(plan.base)) is not None:
            return found  # by a process that ended before it could say so
        _forget(self._place, self._job.id, but=plan.base)
        self._begin(plan.base, plan.refers_to, plan.older)
        with ExitStack() as stack:
            hold = self._gc_hold()
            stack.enter_context(hold or nullcontext())
            rows = SourceRows(plan, self._storage, *((ROLLED_BYTES,) if self._is_rolled else ()))
            done: Written = rows.written()
            self._run.begin_with(plan.progress(done))
            make = make or self._default(stack)
            at_once = 1 if self._is_rolled else self._place.settings.apply.worker_count
            for written in rows.write(make, at_once, done, self._go_on):
                self._tell(written)
                done |= written
            self._check_order()
            base = self._publish(plan.base, plan, with_files(plan, done))
            if hold is not None:
                hold.release()
        return base

    def _tell(self, written: Written) -> None:
        for number, files in written.items():
            chunk = self._plan.chunks[number]
            done = done_of(files, chunk.bytes)
            if self._is_rolled:  # counted as the files came
                done = Done(0, 0, 1, max(0, chunk.bytes - done.bytes))
            self._run.did(chunk.full_name, done)
            self._run.doing(chunk.full_name)

    def _file(self, name: str, file: BaseFile) -> None:
        self._run.did(name, Done(file.rows, file.row_bytes, 0, file.row_bytes))

    def _gc_hold(self) -> GcHold | None:
        if self._plan.spec["kind"] != "tidb-sql":
            return None
        service = f"sluice-{Pipeline.of(self._place.settings).id}-{self._job.id}"
        return GcHold(self._place.cluster.pd, service, self._plan.ts)

    @property
    def _is_rolled(self) -> bool:
        return bool(self._plan.spec["kind"] == ARCHIVE)

    def _default(self, stack: ExitStack) -> MakeFiles:
        if self._is_rolled:
            return rolling(past_of(self._place.settings, self._plan.ts), self._file, self._run.doing)
        return self._on_spark(stack)

    def _on_spark(self, stack: ExitStack) -> Callable[[Any], list[str]]:
        settings = self._place.settings
        function = WriteChunks(dict(self._plan.spec), settings.archive_url)
        calls = SparkCalls(
            Place(
                settings.spark,
                settings.spark_role("base"),
                settings.relay.url,
                (settings.archive_url, *place_of(self._plan.spec)),
            ),
            function,
            TIMEOUT_S,
        )
        stack.callback(calls.close)
        self._doing(f"waiting for Spark at {settings.spark.remote}")
        calls.connect()
        return calls

    # From the downstream

    def _from_downstream(self, wish: BaseWish) -> Base:
        for attempt in range(_TRIES):
            _forget(self._place, self._job.id)
            self._doing("waiting for a checkpoint to read at")
            try:
                return self._read_downstream(wish)
            except TableChanged as error:
                if attempt == _TRIES - 1:
                    raise
                log.warning("the downstream is read anew: %s", error)
        raise AssertionError("unreachable")

    def _read_downstream(self, wish: BaseWish) -> Base:
        settings, place = self._place.settings, self._place
        sessions = settings.apply.worker_count
        cluster_id = place.cluster.pd.cluster_id
        with DownstreamSnapshot.open(settings.downstream, cluster_id, sessions) as snapshot:
            ts = snapshot.checkpoint.commit_ts
            definitions = place.cluster.definitions(ts).of_users()
            older, unchanged = place.unchanged(definitions, full=wish.full)
            session = MySQLSession(settings.downstream)
            session.connect()
            try:
                places, problems = downstream_tables(settings, definitions, session)
                problems += hindrances(settings, place.relay, definitions)
            finally:
                session.close()
            if problems:
                raise BaseError(some(problems))
            name = base_id(ts, secrets.token_hex(6))
            refers_to = {file.path.split("/")[1] for table in unchanged.values() for file in table.files}
            self._begin(name, tuple(sorted(refers_to)), older)
            stripes = stripes_of(snapshot, [one for one in places if one[0].table.full_name not in unchanged])
            self._run.begin_with(_progress(stripes))
            files: dict[str, list[Any]] = {}
            for stripe, written in read_stripes(snapshot, stripes, self._storage, f"bases/{name}", self._go_on):
                full_name = stripe.place.table.full_name
                files.setdefault(full_name, []).extend(written)
                self._run.did(full_name, done_of(written, stripe.bytes))
                self._run.doing(full_name)
            self._check_order()
        self._check_unchanged(ts, {i for stripe in stripes for i in ids_of(stripe.place.table)})
        tables = tuple(
            unchanged.get(table.full_name) or BaseTable(
                table.schema_name, table.name, table.to_json(), tuple(files.get(table.full_name, ()))
            )
            for table in definitions.tables
        )  # fmt: skip
        plan = BasePlan(
            name, ts, definitions.schema_version, cluster_id, self._plan.made_from, self._plan.spec,
            schemas_of(definitions.schemas), tuple(map(table_of, definitions.tables)), older=older,
        )  # fmt: skip
        return self._publish(name, plan, tables)

    def _check_unchanged(self, ts: int, read: set[int]) -> None:
        """Raises TableChanged if a DDL may have given a table's name to other rows before these were read: not every
        such change is seen by the server. What was changed by rows alone was read as it had been.
        """
        reached, touched = self._place.ddl_since(ts)
        if touched is None or touched & read:
            raise TableChanged(f"a DDL committed between {ts} and {reached} changed tables that were being read")

    # Both

    def _begin(self, name: str, refers_to: tuple[str, ...], older: str) -> None:
        """`older`: the base by which unchanged tables are known. Their files may lie in folders of bases that were
        forgotten: they stay as long as that one is there.
        """
        folders = (older, *refers_to) if refers_to else ()
        there = self._place.bases.begin(name, Making(self._job.id, tuple(sorted(set(folders)))))
        if refers_to and older not in there:
            raise BaseError(
                f"the base {older}, which the new one was to refer to, was forgotten meanwhile",
                way_out=f"`sluice jobs cancel {self._job.id}`, and make the base anew",
            )

    def _publish(self, name: str, plan: BasePlan, tables: tuple[BaseTable, ...]) -> Base:
        self._run.look()
        self._check_order()
        now = time.time_ns() // 1_000_000
        base = Base(name, plan.ts, plan.schema_version, plan.cluster_id, now, plan.made_from, plan.schemas, tables)
        return self._place.bases.publish(base)


def _progress(stripes: list[Stripe]) -> Mapping[str, TableProgress]:
    found: dict[str, TableProgress] = {}
    for stripe in stripes:
        name = stripe.place.table.full_name
        before = found.get(name, TableProgress())
        found[name] = TableProgress(Done(), before.bytes_in_all + stripe.bytes, before.chunks_in_all + 1)
    return found

"""A run of a bootstrap's job into topics: rows as they were at a moment, then the checkpoint.

One process sends, since Kafka transactions belong to one producer, and workers encode the chunks
that come next. How far the job is stands in the topics (`sluice.etl.downstream.sinks.kafka_copy`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace

import pyarrow as pa

from sluice.errors import ours
from sluice.etl.copy.bootstrap_summary import BootstrapSummary, saved_plan
from sluice.etl.copy.copy_run import CopyProgressCounts
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.plan import CopyPlan, PlannedTable
from sluice.etl.copy.preconditions import PreconditionMonitor
from sluice.etl.copy.preflight import relay_problems
from sluice.etl.copy.row_counts import compare_with_tidb
from sluice.etl.copy.sources import BootstrapSpec
from sluice.etl.copy.spark_loads import MakeLoads
from sluice.etl.copy.worker import schemas_of
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.sinks.kafka_copy import CopyPosition, KafkaCopy, MessageLoad
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings import Settings
from sluice.relay.jobs import (
    CANCELLED,
    DONE,
    PAUSE,
    PAUSED,
    Job,
    JobCounts,
    JobRun,
    StopRequested,
    TableProgress,
)
from sluice.tidb.schema import Table
from sluice.tidb.table_name import TableName

log = logging.getLogger("sluice.copy")

_MAX_ATTEMPTS = 20
_COMMIT_BYTES = 16 << 20
"""Chunks are committed together up to this: a commit takes as long as some hundred rows."""
_COMMIT_INTERVAL_S = 1.0
"""Readers wait for an open transaction."""

Loads = tuple[pa.RecordBatch | None, Iterator[pa.RecordBatch]]


class TopicsCopyRun:
    """A run of a bootstrap's job: `prepare`, `copy`, `finish`, or all three as `whole`.

    Each raises LeaseLostError, CopyError for what hinders it, ApplyError, CheckpointMovedError, and
    what `make` raises.
    """

    def __init__(
        self,
        settings: Settings,
        cluster_id: int,
        job: Job,
        run: JobRun,
        on_progress: Callable[[CopyProgressCounts], None],
    ) -> None:
        self.plan = CopyPlan.from_json(saved_plan(job))
        self._asked = BootstrapSpec.from_json(job.spec.asked)
        self._settings = settings
        self._job = job
        self._run = run
        self._on_progress = on_progress
        name = f"{job.spec.kind}-{job.spec.token}"
        self._topics = KafkaCopy(settings.kafka, cluster_id, name, len(self.plan.tables))
        self._position = CopyPosition(name)
        self._warnings: list[str] = []
        self.watch = PreconditionMonitor()
        self.progress = CopyProgressCounts(self.plan.bytes, len(self.plan.chunks))

    def whole(self, make: MakeLoads) -> BootstrapSummary:
        """Copy everything in this process, up to where it is ordered to stop."""
        try:
            self._copy(make)
            return self._finish()
        except StopRequested:
            return self._stop()
        finally:
            self._topics.close()

    finish = whole

    def prepare(self) -> bool:
        """Make the topics. False if the run was ordered to stop."""
        try:
            self._begin()
        except StopRequested:
            return False
        finally:
            self._topics.close()
        return True

    def copy(self, make: MakeLoads, share: int, shares: int) -> CopyProgressCounts:
        """Copy all chunks in the first share, and nothing in others: there is one producer."""
        if share:
            return self.progress
        try:
            self._copy(make)
        except StopRequested:
            pass
        finally:
            self._topics.close()
        return self.progress

    def cancel(self) -> BootstrapSummary:
        """Cancel the copy. What is in the topics stays, and is named."""
        try:
            return self._cancel()
        finally:
            self._topics.close()

    def _set_activity(self, what: str) -> None:
        """Set what comes next. Raises StopRequested if the run is to end here, LeaseLostError."""
        self._run.check_order()
        self._run.doing(what)
        self.progress.doing = what
        self._on_progress(self.progress)

    # Copying

    def _begin(self) -> None:
        self._set_activity("making topics")
        names = (TableName(planned.schema, planned.name) for planned in self.plan.tables)
        self._position = self._topics.begin(names)
        chunks = self.plan.chunks[: self._position.next]
        self.progress.chunks = len(chunks)
        self.progress.planned_bytes = sum(chunk.bytes for chunk in chunks)
        self._run.set_totals(self._totals())

    def _totals(self) -> dict[str, TableProgress]:
        """Return the progress by table: what is to be copied, and what is in the topics."""
        found = {
            planned.table.full_name: TableProgress(JobCounts(rows))
            for planned, rows in zip(self.plan.tables, self._position.rows, strict=True)
        }
        for number, chunk in enumerate(self.plan.chunks):
            before = found[chunk.full_name]
            is_done = number < self._position.next
            found[chunk.full_name] = TableProgress(
                before.done + JobCounts(0, 0, 1, chunk.bytes) if is_done else before.done,
                before.bytes_in_all + chunk.bytes,
                before.chunks_in_all + 1,
            )
        return found

    def _copy(self, make: MakeLoads) -> None:
        """Copy what is left, and again after transient errors: the topics have the position."""
        waiting = RetryBackoff(log, "copying into topics")
        for attempt in range(_MAX_ATTEMPTS):
            try:
                self._begin()
                self._copy_left(make)
                return
            except StopRequested:
                raise
            except Exception as error:
                self._topics.close()
                failure = ours(error)
                if not failure.transient or attempt == _MAX_ATTEMPTS - 1:
                    raise
                time.sleep(waiting.after(failure))

    def _copy_left(self, make: MakeLoads) -> None:
        position, done = self._position, deque[tuple[str, JobCounts]]()
        size, began_s = 0, time.monotonic()
        with closing(self._encoded(make)) as chunks:
            for number, loads in chunks:
                place, chunk = self.plan.of_table[number], self.plan.chunks[number]
                rows = sent = 0
                for load in loads:
                    sent += self._topics.write(load)
                    rows += load.rows
                counts = list(position.rows)
                counts[place] += rows
                position = position._replace(next=number + 1, rows=tuple(counts))
                done.append((chunk.full_name, JobCounts(rows, sent, 1, chunk.bytes)))
                size += sent
                is_last = position.next == len(self.plan.chunks)
                if (
                    is_last
                    or size >= _COMMIT_BYTES
                    or time.monotonic() > began_s + _COMMIT_INTERVAL_S
                ):
                    self._run.look()
                    self._run.check()
                    self._topics.commit(position)
                    self._position, size, began_s = position, 0, time.monotonic()
                    self._count(done)
                    self._set_activity(chunk.full_name)
                    self.watch.now_and_then()

    def _count(self, done: deque[tuple[str, JobCounts]]) -> None:
        """Count chunks that are visible now."""
        while done:
            table, counts = done.popleft()
            self._run.did(table, counts)
            self.progress.chunks += 1
            self.progress.rows += counts.rows
            self.progress.bytes += counts.bytes
            self.progress.planned_bytes += counts.planned_bytes

    def _encoded(self, make: MakeLoads) -> Generator[tuple[int, Iterator[MessageLoad]]]:
        """Yield the chunks that are left with their loads; workers encode some in advance."""
        ahead: deque[tuple[int, Future[Loads]]] = deque()
        numbers = iter(range(self._position.next, len(self.plan.chunks)))
        workers = self._settings.apply.worker_count
        with ThreadPoolExecutor(workers, "copy") as pool:
            try:
                while True:
                    while len(ahead) <= workers and (number := next(numbers, None)) is not None:
                        planned = self.plan.tables[self.plan.of_table[number]]
                        chunk, table = self.plan.chunks[number], _renamed(planned)
                        ahead.append((number, pool.submit(_first_load, make(chunk, table))))
                    if not ahead:
                        return
                    number, future = ahead.popleft()
                    yield number, _messages(future.result())
            finally:
                for _, future in ahead:
                    if not future.cancel():
                        _, rest = future.result()
                        rest.close()  # type: ignore[attr-defined]

    # Ending

    def _finish(self) -> BootstrapSummary:
        if not self._position.has_ended:
            self.watch.now()
            copied = dict(enumerate(self._position.rows))
            source, upstream = self._asked.source, self._settings.upstream
            if why := compare_with_tidb(self.plan, source, upstream, copied, self._set_activity):
                self._warnings.append(
                    f"the rows that were copied could not be compared with TiDB's at"
                    f" {self.plan.ts}: {why}"
                )
            if problems := relay_problems(self._settings.open_relay(), self.plan.ts):
                raise CopyError(problems[0])
            self._run.look()
            self._set_activity("writing the checkpoint")
            self._topics.end(Checkpoint(self.plan.ts, self.plan.schema_version), self._position)
        summary = self._summary(DONE)
        self._run.end(DONE, result=asdict(summary))
        return summary

    def _stop(self) -> BootstrapSummary:
        """Do as was ordered."""
        if self._run.order == PAUSE:
            self._run.end(PAUSED)
            return self._summary(PAUSED)
        return self._cancel()

    def _cancel(self) -> BootstrapSummary:
        self._topics.give_up()
        routing = self._settings.kafka.routing
        topics = {
            routing.topic_of(TableName(planned.schema, planned.name))
            for planned in self.plan.tables
        }
        left = tuple(
            f"topic {name}: delete it, or name another one, before the next bootstrap"
            for name in sorted(topics)
        )
        summary = replace(self._summary(CANCELLED), left=left)
        self._run.end(CANCELLED, message="; ".join(left), result=asdict(summary))
        return summary

    def _summary(self, state: str) -> BootstrapSummary:
        progress = self.progress
        seconds = round(time.monotonic() - progress.began_s, 3)
        return BootstrapSummary(
            self.plan.ts, len(self.plan.tables), progress.rows, sum(self._position.rows),
            progress.bytes, seconds, tuple(self._warnings), state,
        )  # fmt: skip


def _renamed(planned: PlannedTable) -> Table:
    """Return the table by its name in the topics."""
    return replace(planned.table, schema_name=planned.schema, name=planned.name)


def _first_load(batches: Iterator[pa.RecordBatch]) -> Loads:
    """Have a chunk encoded: its first load is there then."""
    return next(batches, None), batches


def _messages(loads: Loads) -> Iterator[MessageLoad]:
    first, rest = loads
    for batch in ([] if first is None else [first], rest):
        for one in batch:
            for layout, rows, _, payload in zip(*one.columns, strict=True):
                yield MessageLoad(schemas_of(layout.as_py()), payload.as_buffer(), rows.as_py())

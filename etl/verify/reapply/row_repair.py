"""Repair rows of the running downstream that a past range of windows changed.

They become what they are upstream, from the relay log alone: chunk after chunk of their keys, each
written when the checkpoint is exactly at the chunk's timestamp.
"""

from __future__ import annotations

import json
import logging
import shlex
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.changes.masks import masks_of
from sluice.etl.changes.rules import Filter
from sluice.etl.copy.backfill import AlignedChunkScheduler, BackfillDownstream
from sluice.etl.downstream import ChunkResult
from sluice.etl.verify.errors import ReplayRangeError
from sluice.etl.verify.reapply.changed_keys import ChangedKeys
from sluice.etl.verify.reapply.latest_rows import condition_of, write_loads
from sluice.etl.verify.reapply.request import ReplayRequest
from sluice.relay import AlignedChunk, ChunkReady, RelayLog, TableRepair
from sluice.relay.jobs import JobCounts, JobRun, TableProgress
from sluice.tidb.schema import Table

log = logging.getLogger("sluice.reapply")

CHUNK_ROWS = 2_000
_MAX_ATTEMPTS = 30
_POLL_INTERVAL_S = 0.02
_WAIT_LOG_DELAY_S = 3.0
_COUNTERS = ("rows", "same", "inserted", "replaced", "deleted")


def _chunk_count(rows: int) -> int:
    """Return how many chunks that many rows are, if none has to be made smaller."""
    return -(-rows // CHUNK_ROWS)


@dataclass(frozen=True, slots=True)
class RepairEndpoints:
    """The clients of a repair. `now`: fresh timestamps of PD; `filters`: the pipeline's."""

    relay: RelayLog
    downstream: BackfillDownstream
    now: Callable[[], int]
    filters: Filter


class RowRepair:
    """One run of a job.

    `work` does it; `counts` are those of its chunks, by table, see `ChunkResult`.
    """

    def __init__(
        self,
        request: ReplayRequest,
        touched: ChangedKeys,
        places: RepairEndpoints,
        job: str,
        run: JobRun,
    ) -> None:
        self._request = request
        self._changed_keys = touched
        self._relay = places.relay
        self._filters = places.filters
        self._job = job
        self._run = run
        self._scheduler = AlignedChunkScheduler(
            places.relay.aligned_chunks, job, places.now, places.downstream
        )
        self._done = _ProgressFile(places.relay, job)
        self._attempts = 0
        self._began = 0.0
        self._rows = 0
        self.counts: dict[str, Counter[str]] = {}

    def work(self) -> None:
        """Repair rows until every touched key is done.

        Raises StopRequested, ReplayRangeError, LeaseLostError, BackfillError, and what preparing
        and the clients of PD and of the downstream raise.
        """
        for made in self._scheduler.orphaned():
            self._result(made)
            self._scheduler.remove(made)
        self._run.doing("looking for the rows that were touched")
        self._changed_keys.collect(lambda ts: self._check_orders())
        tables = sorted(self._changed_keys.tables.values(), key=lambda table: table.full_name)
        self._run.set_totals({table.full_name: self._progress(table) for table in tables})
        self._scheduler.begin_repair(
            TableRepair(self._job, self._job, tuple(table.id for table in tables)), self._run
        )
        self._began = time.monotonic()
        for table in tables:
            self._repair_table(table)
        self.release()

    def release(self) -> None:
        """End the repair: changes to the tables are checked again."""
        self._relay.aligned_chunks.end_repair(self._job)

    def _progress(self, table: Table) -> TableProgress:
        rows = self._changed_keys.rows(table.id)
        done = self._done.of(table, rows)
        chunks = _chunk_count(rows.num_rows)
        return TableProgress(JobCounts(done, 0, _chunk_count(done)), 0, chunks, rows.num_rows)

    def _repair_table(self, table: Table) -> None:
        rows = self._changed_keys.rows(table.id)
        self._run.doing(table.full_name)
        first = self._done.of(table, rows)
        size = CHUNK_ROWS
        while first < rows.num_rows:
            self._check_orders()
            chunk = rows.slice(first, size)
            found = self._repair_chunk(table, chunk, first // CHUNK_ROWS + 1)
            if found is None:
                size = max(1, size // 2)
                self._retry(table)
                continue
            self._attempts = 0
            first += chunk.num_rows
            size = min(CHUNK_ROWS, size * 2)
            self._note(table, rows, first, chunk.num_rows, found)

    def _repair_chunk(self, table: Table, keys: pa.Table, number: int) -> ChunkResult | None:
        """Write some of the touched keys; return None if nothing came of it this time."""
        made = self._scheduler.make(
            AlignedChunk(
                0,
                self._job,
                number,
                table.id,
                table.schema_name,
                table.name,
                condition=condition_of(table, keys),
            )
        )
        loads: tuple[Any, ...] = ()
        try:
            self._wait_until_landed(made.at_ts)
            self._changed_keys.advance(made.at_ts)
            rows = self._changed_keys.current(table.id, keys)
            narrowed = self._filters.narrowed(table)
            path = f"jobs/{self._job}/rows/{made.at_ts}"
            loads = write_loads(self._relay.storage, narrowed, rows, path)
            definition = self._changed_keys.tables[table.id].to_json()
            ready = ChunkReady(definition, made.at_ts, loads, masks_of(narrowed))
            outcome = self._scheduler.settle(made, ready)
        except BaseException:
            with suppress(SluiceError, OSError):
                if self._scheduler.give_up(made, "the job has ended"):
                    self._scheduler.remove(made)
            raise
        found = self._result(made) if isinstance(outcome, ChunkReady) else None
        self._scheduler.remove(made)
        for load in loads:
            self._relay.storage.remove(load.path)
        if found is not None and found.declined:
            log.info("%s: %s", table.full_name, found.declined)
            if not found.is_passing:
                raise ReplayRangeError(
                    f"{found.declined}. What was touched isn't enough: copy the table again,"
                    f" `sluice backfill --table {shlex.quote(table.full_name)}`"
                )
            return None
        return found

    def _wait_until_landed(self, ts: int) -> None:
        began = time.monotonic()
        while (last := self._relay.last()) is None or last.hi < ts:
            self._waiting(time.monotonic() - began)
            time.sleep(_POLL_INTERVAL_S)

    def _result(self, made: AlignedChunk) -> ChunkResult | None:
        return self._scheduler.result(made, self._waiting)

    def _waiting(self, seconds: float) -> None:
        self._run.check()
        if seconds > _WAIT_LOG_DELAY_S:
            self._run.doing(
                "waiting for landing and applying to come to a chunk: `sluice status` shows them"
            )
            self._run.check_order()

    def _check_orders(self) -> None:
        self._run.look()
        self._run.check_order()

    def _retry(self, table: Table) -> None:
        self._attempts += 1
        if self._attempts >= _MAX_ATTEMPTS:
            raise ReplayRangeError(
                f"{table.full_name}: a chunk failed {_MAX_ATTEMPTS} times: applying didn't"
                " wait for it, or the table changed. The log of the task that applies has the"
                " reason; then go on with the job"
            )
        time.sleep(min(0.05 * 2**self._attempts, 2.0))

    def _note(
        self, table: Table, rows: pa.Table, through: int, count: int, found: ChunkResult
    ) -> None:
        self._done.keep(table, rows, through)
        counts = self.counts.setdefault(table.full_name, Counter(dict.fromkeys(_COUNTERS, 0)))
        counts.update({name: getattr(found, name) for name in _COUNTERS})
        self._run.did(
            table.full_name,
            JobCounts(count, 0, _chunk_count(through) - _chunk_count(through - count)),
        )
        self._rows += count
        if self._request.rows_per_second:
            ahead_s = self._rows / self._request.rows_per_second - (time.monotonic() - self._began)
            while ahead_s > 0:
                self._check_orders()
                time.sleep(min(ahead_s, 0.2))
                ahead_s -= 0.2


class _ProgressFile:
    """The file with the number of rows that are done, by table.

    They count only while the rows are found in the same order.
    """

    def __init__(self, relay: RelayLog, job: str) -> None:
        self._storage = relay.storage
        self._path = f"jobs/{job}/repaired.json"
        try:
            self._known: dict[str, list[int]] = json.loads(self._storage.read(self._path))
        except FileNotFoundError:
            self._known = {}

    def of(self, table: Table, rows: pa.Table) -> int:
        """Return how many of these rows are done."""
        done, seen = self._known.get(str(table.id), (0, 0))
        return done if done and self._sum(table, rows, done) == seen else 0

    def keep(self, table: Table, rows: pa.Table, done: int) -> None:
        """Note durably how many rows of a table are done."""
        self._known[str(table.id)] = [done, self._sum(table, rows, done)]
        self._storage.replace(self._path, json.dumps(self._known).encode() + b"\n")

    def _sum(self, table: Table, rows: pa.Table, done: int) -> int:
        """Return a checksum of the last keys that are done."""
        last = rows.slice(max(0, done - CHUNK_ROWS), min(done, CHUNK_ROWS))
        return zlib.crc32(condition_of(table, last).encode())

"""Rows that a past range of windows touched become in the running downstream what they are upstream, from the relay log
alone: chunk after chunk of their keys, each written when the checkpoint is exactly where it is as of.
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

from errors import Signal, SluiceError
from etl.backfill import Appointing, DownstreamSide
from etl.downstream import ChunkResult
from etl.reapply.errors import ReapplyError
from etl.reapply.newest_rows import condition_of, write_loads
from etl.reapply.request import Request
from etl.reapply.touched import TouchedRows
from relay import Appointment, Mending, Ready, RelayLog
from relay.jobs import Done, Run, TableProgress
from upstream.schema import Table

log = logging.getLogger("sluice.reapply")

CHUNK_ROWS = 2_000
_TRIES = 30
_POLL_S = 0.02
_TELL_AFTER_S = 3.0
_COUNTED = ("rows", "same", "inserted", "replaced", "deleted")


def _chunks(rows: int) -> int:
    """How many chunks that many rows are, if none has to be made smaller."""
    return -(-rows // CHUNK_ROWS)


class OrderedError(Signal):
    """Somebody wants the job to pause or to be cancelled."""


@dataclass(frozen=True, slots=True)
class Places:
    """What a repair works with. `now`: fresh timestamps of PD."""

    relay: RelayLog
    downstream: DownstreamSide
    now: Callable[[], int]


class Repair:
    """One run of a job. `work` does it; `counts` are those of its chunks, by table, see `ChunkResult`."""

    def __init__(self, request: Request, touched: TouchedRows, places: Places, job: str, run: Run) -> None:
        self._request = request
        self._touched = touched
        self._relay = places.relay
        self._job = job
        self._run = run
        self._appointing = Appointing(places.relay.appointments, job, places.now, places.downstream)
        self._done = _DoneFile(places.relay, job)
        self._tries = 0
        self._began = 0.0
        self._rows = 0
        self.counts: dict[str, Counter[str]] = {}

    def work(self) -> None:
        """Until every touched key is done. Raises OrderedError, ReapplyError, LeaseLostError, BackfillError, and what
        preparing and the clients of PD and of the downstream raise.
        """
        for made in self._appointing.left_over():
            self._result(made)
            self._appointing.remove(made)
        self._run.doing("looking for the rows that were touched")
        self._touched.gather(lambda ts: self._heed_orders())
        tables = sorted(self._touched.tables.values(), key=lambda table: table.full_name)
        self._run.begin_with({table.full_name: self._progress(table) for table in tables})
        self._appointing.mend(Mending(self._job, self._job, tuple(table.id for table in tables)), self._run)
        self._began = time.monotonic()
        for table in tables:
            self._bring_table(table)
        self.let_go()

    def let_go(self) -> None:
        """Changes to the tables are checked again."""
        self._relay.appointments.mended(self._job)

    def _progress(self, table: Table) -> TableProgress:
        rows = self._touched.rows(table.id)
        done = self._done.of(table, rows)
        chunks = _chunks(rows.num_rows)
        return TableProgress(Done(done, 0, _chunks(done)), 0, chunks, rows.num_rows)

    def _bring_table(self, table: Table) -> None:
        rows = self._touched.rows(table.id)
        self._run.doing(table.full_name)
        first = self._done.of(table, rows)
        size = CHUNK_ROWS
        while first < rows.num_rows:
            self._heed_orders()
            chunk = rows.slice(first, size)
            found = self._bring(table, chunk, first // CHUNK_ROWS + 1)
            if found is None:
                size = max(1, size // 2)
                self._once_more(table)
                continue
            self._tries = 0
            first += chunk.num_rows
            size = min(CHUNK_ROWS, size * 2)
            self._note(table, rows, first, chunk.num_rows, found)

    def _bring(self, table: Table, keys: pa.Table, number: int) -> ChunkResult | None:
        """Have some of the touched keys written; None if nothing came of it this time."""
        made = self._appointing.make(
            Appointment(
                0, self._job, number, table.id, table.schema_name, table.name, condition=condition_of(table, keys)
            )
        )
        loads: tuple[Any, ...] = ()
        try:
            self._wait_until_landed(made.at_ts)
            self._touched.advance(made.at_ts)
            rows = self._touched.as_of_now(table.id, keys)
            loads = write_loads(self._relay.storage, table, rows, f"jobs/{self._job}/rows/{made.at_ts}")
            ready = Ready(self._touched.tables[table.id].to_json(), made.at_ts, loads)
            outcome = self._appointing.settle(made, ready)
        except BaseException:
            with suppress(SluiceError, OSError):
                if self._appointing.give_up(made, "the job has ended"):
                    self._appointing.remove(made)
            raise
        found = self._result(made) if isinstance(outcome, Ready) else None
        self._appointing.remove(made)
        for load in loads:
            self._relay.storage.remove(load.path)
        if found is not None and found.declined:
            log.info("%s: %s", table.full_name, found.declined)
            if not found.is_passing:
                raise ReapplyError(
                    f"{found.declined}. What was touched isn't enough: copy the table again, `sluice backfill --table"
                    f" {shlex.quote(table.full_name)}`"
                )
            return None
        return found

    def _wait_until_landed(self, ts: int) -> None:
        began = time.monotonic()
        while (last := self._relay.last()) is None or last.hi < ts:
            self._waiting(time.monotonic() - began)
            time.sleep(_POLL_S)

    def _result(self, made: Appointment) -> ChunkResult | None:
        return self._appointing.result(made, self._waiting)

    def _waiting(self, seconds: float) -> None:
        self._run.check()
        if seconds > _TELL_AFTER_S:
            self._run.doing("waiting for landing and applying to come to a chunk: `sluice status` tells")
            if self._run.order is not None:
                raise OrderedError

    def _heed_orders(self) -> None:
        self._run.look()
        self._run.check()
        if self._run.order is not None:
            raise OrderedError

    def _once_more(self, table: Table) -> None:
        self._tries += 1
        if self._tries >= _TRIES:
            raise ReapplyError(
                f"{table.full_name}: a chunk came to nothing {_TRIES} times: applying didn't wait for it, or the table"
                " changed. The log of the task that applies says why; then go on with the job"
            )
        time.sleep(min(0.05 * 2**self._tries, 2.0))

    def _note(self, table: Table, rows: pa.Table, through: int, count: int, found: ChunkResult) -> None:
        self._done.keep(table, rows, through)
        counts = self.counts.setdefault(table.full_name, Counter(dict.fromkeys(_COUNTED, 0)))
        counts.update({name: getattr(found, name) for name in _COUNTED})
        self._run.did(table.full_name, Done(count, 0, _chunks(through) - _chunks(through - count)))
        self._rows += count
        if self._request.rows_per_second:
            ahead_s = self._rows / self._request.rows_per_second - (time.monotonic() - self._began)
            while ahead_s > 0:
                self._heed_orders()
                time.sleep(min(ahead_s, 0.2))
                ahead_s -= 0.2


class _DoneFile:
    """How many rows of each table's are done. They count only while the rows are found in the same order."""

    def __init__(self, relay: RelayLog, job: str) -> None:
        self._storage = relay.storage
        self._path = f"jobs/{job}/repaired.json"
        try:
            self._known: dict[str, list[int]] = json.loads(self._storage.read(self._path))
        except FileNotFoundError:
            self._known = {}

    def of(self, table: Table, rows: pa.Table) -> int:
        """Of these rows."""
        done, seen = self._known.get(str(table.id), (0, 0))
        return done if done and self._sum(table, rows, done) == seen else 0

    def keep(self, table: Table, rows: pa.Table, done: int) -> None:
        """Durably."""
        self._known[str(table.id)] = [done, self._sum(table, rows, done)]
        self._storage.replace(self._path, json.dumps(self._known).encode() + b"\n")

    def _sum(self, table: Table, rows: pa.Table, done: int) -> int:
        """A checksum of the last keys that are done."""
        last = rows.slice(max(0, done - CHUNK_ROWS), min(done, CHUNK_ROWS))
        return zlib.crc32(condition_of(table, last).encode())

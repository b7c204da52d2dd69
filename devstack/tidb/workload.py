"""Live traffic for measuring lag and load: transactions as TiDB writes them, without a recording.

In the schema `database` there is

    txn (id BIGINT PRIMARY KEY, note VARCHAR(32))
        one row a transaction, id is its number
    load_<n> (id BIGINT PRIMARY KEY, k INT, pad VARCHAR(row_bytes))
        all other rows of the transactions

so that a prober can read from `txn` downstream which transactions have arrived, and from the commit
log when each of them committed. A transaction's first row goes to `txn`; the others are inserts
into, updates in, or deletes from the load tables.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from sluice.devstack.tidb.ddl_writer import ColumnSpec, DDLWriter, Writer
from sluice.errors import RequestError
from sluice.tidb import column_types, pb
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table

if TYPE_CHECKING:
    from sluice.devstack.tidb.tidb_server import UpstreamState

_MAX_OPEN_TRANSACTIONS = 256  # transactions at a time
_MAX_UPDATABLE_ROWS = 10_000  # rows kept in mind for updates


class WorkloadError(RequestError, ValueError):
    """Options that make no workload."""


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """Workload options; `rate`: transactions/s, None: as many as the pumps take.

    `transactions`: how many, None: until stopped. `rows`: row changes a transaction. `updates`,
    `deletes`: shares of the changes in load tables that are such. `row_bytes`: length of `pad`.
    """

    rate: float | None = 20.0
    transactions: int | None = 200
    rows: int = 1
    tables: int = 1
    row_bytes: int = 100
    updates: float = 0.3
    deletes: float = 0.0
    database: str = "sluice_load"
    seed: int = 1

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> WorkloadOptions:
        """Parse a JSON object; `"rate": "max"` is None.

        WorkloadError names the option that is wrong.
        """
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise WorkloadError(
                f"unknown option {', '.join(unknown)}; there are: {', '.join(sorted(known))}"
            )
        values = dict(given)
        if values.get("rate", 0) in ("max", None):
            values["rate"] = None
        for name, low, high in _LIMITS:
            value = values.get(name)
            if name in values and value is None and name in ("rate", "transactions"):
                continue
            if name in values and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise WorkloadError(f"{name} is a number, not {value!r}")
            if name in values and not low <= values[name] <= high:
                raise WorkloadError(f"{name} is between {low} and {high}, not {value}")
        for name in ("transactions", "rows", "tables", "row_bytes", "seed"):
            if values.get(name) is not None and int(values[name]) != values[name]:
                raise WorkloadError(f"{name} is a whole number, not {values[name]}")
        if not isinstance(values.get("database", ""), str) or values.get("database") == "":
            raise WorkloadError("database is a name")
        return cls(**values)


_LIMITS: tuple[tuple[str, float, float], ...] = (
    ("rate", 0.01, 1e6),
    ("transactions", 1, 1e9),
    ("rows", 1, 1_000_000),
    ("tables", 1, 100),
    ("row_bytes", 1, 16_000),
    ("updates", 0.0, 1.0),
    ("deletes", 0.0, 1.0),
    ("seed", 0, 1 << 32),
)


@dataclass(slots=True)
class _Database:
    """The database that a workload made, for the next one to go on with."""

    marker: Table
    loads: list[Table]
    next_row: int = 1
    # (table, id, k) of committed rows, none in flight
    updatable: list[tuple[int, int, int]] | None = None


class Workload:
    """One run.

    `earlier`: the workload before it on the same cluster; its tables are used again, numbers go on.
    """

    def __init__(
        self,
        options: WorkloadOptions,
        writer: Writer,
        state: UpstreamState,
        earlier: Workload | None = None,
    ) -> None:
        self.options = options
        self._writer = writer
        self._oracle, self._store = state.oracle, state.store
        self._history, self._commits, self._versions = state.history, state.commits, state.versions
        self._databases: dict[tuple[str, int, int], _Database] = (
            earlier._databases if earlier else {}
        )
        self._first: int = earlier._next if earlier else 1
        self._next: int = self._first
        self._random = random.Random(options.seed)
        self._slots = asyncio.Semaphore(_MAX_OPEN_TRANSACTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._locked: set[int] = set()  # start_ts of those that are prewritten
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._committed = self._changes = self._undelivered = 0
        self._state = "preparing"
        self._started = 0.0
        self._ended = 0.0
        self._behind_s = 0.0

    def status(self) -> dict[str, Any]:
        """Return the state (preparing, running, done, failed), counts, and transaction numbers.

        The numbers are those of its first and latest transaction.

        `behind_ms`: how far the clock of the rate was missed at worst.
        """
        elapsed = (self._ended or time.monotonic()) - self._started if self._started else 0.0
        return {
            "state": self._state,
            "error": (
                None
                if self._failure is None
                else f"{type(self._failure).__name__}: {self._failure}"
            ),
            "options": asdict(self.options),
            "first": self._first,
            "latest": self._next - 1,
            "committed": self._committed,
            "changes": self._changes,
            "undelivered": self._undelivered,
            "seconds": round(elapsed, 3),
            "behind_ms": round(self._behind_s * 1000, 1),
            "newest_commit_ts": self._commits.newest_ts,
        }

    def may_commit_at(self, ts: int) -> bool:
        """Return whether a prewritten transaction may get a commit timestamp at or below this one.

        PD's clock has passed this one.
        """
        return any(start_ts <= ts for start_ts in self._locked)

    async def stop(self) -> None:
        """Start no further transactions; finish those that began."""
        self._stopping.set()

    async def run(self) -> None:
        """Make the tables, then the transactions.

        Raises PumpWriteError if the pumps take no more.
        """
        try:
            database = await self._prepare()
            self._state, self._started = "running", time.monotonic()
            while not self._stopping.is_set() and self._failure is None:
                done = self._next - self._first
                if self.options.transactions is not None and done >= self.options.transactions:
                    break
                await self._pace(done)
                await self._slots.acquire()
                number, self._next = self._next, self._next + 1
                self._spawn(self._transaction(number, database))
            while self._tasks:
                await asyncio.wait(self._tasks)
            if self._failure:
                raise self._failure
            self._state = "done"
        except BaseException as error:
            self._failure = error
            self._state = "failed"
            raise
        finally:
            self._ended = time.monotonic()

    async def _prepare(self) -> _Database:
        options = self.options
        shape = (options.database, options.tables, options.row_bytes)
        if shape in self._databases:
            return self._databases[shape]
        if any(name == options.database for name, _, _ in self._databases):
            raise WorkloadError(
                f"schema {options.database} was made with other tables; name another database, or"
                " use the same tables and row_bytes"
            )
        ddl = DDLWriter(self._writer, self._oracle, self._store, self._history, self._versions)
        name = options.database
        schema_id = await ddl.create_schema(name)
        key = ColumnSpec("id", column_types.BIGINT, 20, "BIGINT PRIMARY KEY", primary=True)
        note = ColumnSpec("note", column_types.VARCHAR, 32, "VARCHAR(32) NOT NULL", text=True)
        counter = ColumnSpec("k", column_types.INT, 11, "INT NOT NULL")
        pad = ColumnSpec(
            "pad",
            column_types.VARCHAR,
            options.row_bytes,
            f"VARCHAR({options.row_bytes}) NOT NULL",
            text=True,
        )
        marker = await ddl.create_table(schema_id, name, "txn", [key, note])
        loads = [
            await ddl.create_table(schema_id, name, f"load_{n}", [key, counter, pad])
            for n in range(1, options.tables + 1)
        ]
        database = _Database(marker, loads, updatable=[])
        self._databases[shape] = database
        return database

    async def _transaction(self, number: int, database: _Database) -> None:
        start_ts = 0
        try:
            start_ts = await self._oracle.take()
            mutations, after = self._changes_of(number, database)
            value = pb.binlog.PrewriteValue(
                schema_version=self._history.schema_version, mutations=mutations
            )
            key = b"t" + encode_int(database.marker.id) + b"_r" + encode_int(number)
            binlog = pb.binlog.Binlog(
                tp=pb.binlog.Prewrite,
                start_ts=start_ts,
                commit_ts=0,
                prewrite_key=key,
                prewrite_value=value.SerializeToString(),
                ddl_job_id=0,
                ddl_schema_state=0,
            )
            payload = binlog.SerializeToString()
            self._store.prewrite(key, start_ts)
            self._locked.add(start_ts)
            try:
                await self._writer.prewrite(start_ts, payload)
            except BaseException:
                self._store.rollback(key, start_ts)
                raise
            commit_ts = await self._oracle.take()
            self._store.commit(key, start_ts, commit_ts)
            self._commits.add(commit_ts, number)
            self._versions.follow(commit_ts, payload)
            self._committed += 1
            self._changes += self.options.rows
            assert database.updatable is not None
            database.updatable += after
        finally:
            self._locked.discard(start_ts)
            self._slots.release()
        binlog.ClearField("prewrite_value")
        binlog.tp, binlog.commit_ts = pb.binlog.Commit, commit_ts
        try:
            await self._writer.finish(start_ts, binlog.SerializeToString())
        except Exception:
            self._undelivered += 1  # the pump asks TiKV

    def _changes_of(
        self, number: int, database: _Database
    ) -> tuple[list[pb.binlog.TableMutation], list[tuple[int, int, int]]]:
        """Return the transaction's mutations, and the load rows as they are after it."""
        mutation = pb.binlog.TableMutation(table_id=database.marker.id, sequence=[pb.binlog.Insert])
        mutation.inserted_rows.append(
            encode_insert(database.marker, {"id": number, "note": f"transaction {number}"})
        )
        by_table: dict[int, pb.binlog.TableMutation] = {}
        after = []
        pool = database.updatable
        assert pool is not None
        for _ in range(self.options.rows - 1):
            # A row being changed is out of the pool until its transaction has committed: values
            # follow commit order.
            drawn = self._random.random()
            if pool and drawn < self.options.updates + self.options.deletes:
                at = self._random.randrange(len(pool))
                pool[at], pool[-1] = pool[-1], pool[at]
                which, row_id, k = pool.pop()
                table = database.loads[which]
                old, new = ({"id": row_id, "k": v, "pad": self._pad(row_id, v)} for v in (k, k + 1))
                change = by_table.setdefault(which, pb.binlog.TableMutation(table_id=table.id))
                if drawn < self.options.updates:
                    change.updated_rows.append(encode_update(table, old, new))
                    change.sequence.append(pb.binlog.Update)
                    after.append((which, row_id, k + 1))
                else:
                    change.deleted_rows.append(encode_delete(table, old))
                    change.sequence.append(pb.binlog.DeleteRow)
            else:
                row_id, database.next_row = database.next_row, database.next_row + 1
                which = row_id % len(database.loads)
                table = database.loads[which]
                change = by_table.setdefault(which, pb.binlog.TableMutation(table_id=table.id))
                change.inserted_rows.append(
                    encode_insert(table, {"id": row_id, "k": 0, "pad": self._pad(row_id, 0)})
                )
                change.sequence.append(pb.binlog.Insert)
                after.append((which, row_id, 0))
        room = max(0, _MAX_UPDATABLE_ROWS - len(pool))
        return [mutation, *by_table.values()], after[:room]

    def _pad(self, row_id: int, k: int) -> str:
        text = f"{row_id}-{k}-"
        return (text * (self.options.row_bytes // len(text) + 1))[: self.options.row_bytes]

    async def _pace(self, done: int) -> None:
        if self.options.rate is None:
            if done % 64 == 0:
                await asyncio.sleep(0)
            return
        due = self._started + done / self.options.rate
        wait = due - time.monotonic()
        if wait > 0:
            try:
                await asyncio.wait_for(self._stopping.wait(), wait)
            except TimeoutError:
                return
        else:
            self._behind_s = max(self._behind_s, -wait)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() and self._failure is None:
            self._failure = task.exception()

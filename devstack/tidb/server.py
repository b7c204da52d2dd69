"""The stand-in cluster as one process: PD, TiKV and etcd's face on one gRPC port, and a TiDB.

The TiDB replays or works, and has its SQL port.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

from sluice.devstack.collations import recorded_new_collations
from sluice.devstack.recording import Recording
from sluice.devstack.tidb.accident import delete_everything
from sluice.devstack.tidb.captured_ddl import CapturedDDL
from sluice.devstack.tidb.change_data import ACCIDENTS, ChangeData, regions_of
from sluice.devstack.tidb.change_writer import ChangeWriter
from sluice.devstack.tidb.commit_log import CommitLog
from sluice.devstack.tidb.control import ControlServer, RequestRejected
from sluice.devstack.tidb.ddl_history import DDLHistory
from sluice.devstack.tidb.ddl_writer import ColumnSpec, DDLWriter
from sluice.devstack.tidb.etcd_proxy import EtcdProxy
from sluice.devstack.tidb.oracle import Oracle
from sluice.devstack.tidb.pd import CAPTURED_VERSION, PDService
from sluice.devstack.tidb.pump_writer import (
    STRATEGIES,
    PumpWriter,
    SeveralWriters,
    TransactionWriter,
)
from sluice.devstack.tidb.regions import RegionMap
from sluice.devstack.tidb.row_commit import commit_rows
from sluice.devstack.tidb.sql import ClusterState, SQLServer, Versions
from sluice.devstack.tidb.sql.errors import SQLError
from sluice.devstack.tidb.sql.writes import WriteTransaction, mutations
from sluice.devstack.tidb.store import Store
from sluice.devstack.tidb.tidb_server import TiDBServer, UpstreamState
from sluice.devstack.tidb.tikv import TiKVService
from sluice.devstack.tidb.upstream_work import OPEN_TIMEOUT_S, UpstreamWork
from sluice.devstack.tidb.variables import put_variables
from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.sql_text import literal
from sluice.tidb import PumpWriteError, column_types, pb_grpc

_STORE_ID = 1
_COMMITS_PER_PAGE = 10_000
_SERVER_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # etcd and PD clients ping idle connections; a server without this option hangs up on them.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Cluster options; `listen`, `control` and `sql` are host:port (port 0: any free one).

    Without `recording` only workloads can run, and the SQL port has no tables.
    """

    etcd: str
    listen: str = "127.0.0.1:0"
    control: str = "127.0.0.1:0"
    sql: str = "127.0.0.1:0"
    recording: Path | None = None
    cluster_id: int | None = None
    stores: int = 1
    """TiKV stores; those behind the first have a port of their own each."""
    min_ts_interval_s: float = 1.0
    """Interval at which change data's resolved timestamps advance, TiKV's cdc.min-ts-interval."""
    has_capture: bool = False
    """TiDB writes rows to TiKV, and no binlogs to pumps."""


class Cluster:
    """Build it and await `start()` on one event loop. Raises RecordingError for a bad recording."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self.recording = Recording(options.recording) if options.recording else None
        first = None
        if self.recording:
            transactions = self.recording.transactions()
            first = min(transactions) if transactions else None
        self.cluster_id = options.cluster_id or (
            self.recording.cluster_id if self.recording else random.getrandbits(62) | 1 << 61
        )
        self.oracle = Oracle(ceiling=first)
        self.store = Store(lambda: self.oracle.last)
        self.history = DDLHistory(self.store)
        if self.recording:
            self.history.load(self.recording)
            put_variables(self.store, self._new_collations)
        self.regions = RegionMap(_STORE_ID, self.history.splits())
        self.changes = ChangeData(self.cluster_id, self.store, self.regions)
        self.commits = CommitLog()
        self._versions = Versions(self.recording, self._new_collations)
        self._upstream = UpstreamState(
            self.oracle, self.store, self.history, self.commits, self._versions
        )
        self.work = UpstreamWork(self.recording, self._upstream, self._writer)
        self.port = self.control_port = self.sql_port = 0
        self._emptied: set[int] = set()
        self._writing = asyncio.Lock()
        self._capture: ChangeWriter | None = None
        if options.has_capture:
            meta = self.recording.meta_keys() if self.recording else ()
            self._capture = ChangeWriter(self.store, self._versions, meta)
            self.history.captured = CapturedDDL(self.store, self._versions)
        self._tidbs: dict[str, TiDBServer] = {}
        self._other_stores: list[grpc.aio.Server] = []

    async def start(self) -> None:
        """Listen. OSError if a port is taken."""
        host, _ = _split(self._options.listen)
        self._proxy = EtcdProxy(self._options.etcd)
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        try:
            self.port = self._server.add_insecure_port(self._options.listen)
        except RuntimeError as error:
            raise OSError(f"can't listen on {self._options.listen}: {error}") from error
        self._address = f"{host}:{self.port}"
        self._stores = stores = {_STORE_ID: self._address}
        self._pd = pd = PDService(
            self.cluster_id, f"http://{self._address}", stores, self.oracle, self.regions
        )
        if self._options.has_capture:
            pd.version = CAPTURED_VERSION
        pb_grpc.pd.add_PDServicer_to_server(pd, self._server)  # type: ignore[no-untyped-call] # generated
        self._add_store(self._server, _STORE_ID)
        self._server.add_generic_rpc_handlers((self._proxy,))
        for store_id in range(_STORE_ID + 1, _STORE_ID + self._options.stores):
            other = grpc.aio.server(options=_SERVER_OPTIONS)
            stores[store_id] = f"{host}:{other.add_insecure_port(f'{host}:0')}"
            self._add_store(other, store_id)
            self._other_stores.append(other)
        for server in (self._server, *self._other_stores):
            await server.start()
        self._ticks = asyncio.create_task(self._advance())
        control_host, control_port = _split(self._options.control)
        self._control = ControlServer(
            control_host,
            control_port,
            asyncio.get_running_loop(),
            {
                "GET /status": self.status,
                "POST /replay": self.replay,
                "POST /stop": self.stop_work,
                "GET /commits": self.list_commits,
                "POST /workload": self.work.start_workload,
                "GET /workload": self.work.workload_status,
                "POST /tidb": self.tidb,
                "POST /gc": self.collect_garbage,
                "POST /column": self.add_column,
                "POST /accident": self.have_accident,
                "POST /change-data": self.disturb_change_data,
                "GET /change-data": self.list_subscriptions,
            },
        )
        self.control_port = self._control.port
        self._control.start()
        loop = asyncio.get_running_loop()
        state = ClusterState(
            self._versions,
            take_ts=lambda: asyncio.run_coroutine_threadsafe(self.oracle.take(), loop).result(
                OPEN_TIMEOUT_S
            ),
            limit=self.work.last_played,
            gc_safe_point=lambda: pd.gc_safe_point,
            settle=lambda ts: asyncio.run_coroutine_threadsafe(
                self.work.wait_for_locks(ts), loop
            ).result(OPEN_TIMEOUT_S),
            commit=lambda writes: asyncio.run_coroutine_threadsafe(
                self.commit_writes(writes), loop
            ).result(2 * OPEN_TIMEOUT_S),
        )
        self._sql = SQLServer(state, *_split(self._options.sql))
        self.sql_port = self._sql.port
        self._sql.start()

    def store_address(self, store_id: int) -> str:
        """Return where a store serves gRPC."""
        return self._stores[store_id]

    async def stop(self) -> None:
        """End what runs and stop listening."""
        await self.work.stop()
        for tidb in self._tidbs.values():
            await tidb.kill()
        await asyncio.to_thread(self._sql.stop)
        await asyncio.to_thread(self._control.stop)
        self._ticks.cancel()
        self.changes.break_streams()
        for server in (self._server, *self._other_stores):
            await server.stop(grace=0.2)
        await self._proxy.close()

    async def status(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of GET /status.

        Timestamps are TSOs; `commits` counts entries that GET /commits has.
        """
        recording = self.recording
        return {
            "cluster_id": self.cluster_id,
            "recording": recording and str(recording.directory),
            "labels": [{"label": label.name, "ts": label.ts} for label in recording.labels]
            if recording
            else [],
            "state": self.work.state,
            "error": self.work.error,
            "until_ts": self.work.until_ts,
            "counts": self.work.counts(),
            "newest_commit_ts": self.commits.newest_ts,
            "newest_ts": self.oracle.last,
            "commits": len(self.commits),
            "schema_version": self.history.schema_version,
        }

    async def replay(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """POST /replay: starts it and returns at once; GET /status shows how it goes."""
        await self.work.replay(parameters)
        return await self.status({})

    async def stop_work(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """POST /stop: ends a replay or workload, its open transactions rolled back."""
        await self.work.stop()
        return await self.status({})

    async def tidb(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """POST /tidb: one step of the TiDB at `address`, see sluice.devstack.tidb.tidb_server."""
        address, step = str(parameters.get("address", "")), parameters.get("do")
        start_ts = int(parameters.get("start_ts") or 0)
        if step == "start":
            if address in self._tidbs:
                raise RequestRejected(409, f"the TiDB at {address} runs")
            tidb = TiDBServer(
                address,
                self._options.etcd,
                self._writer({}),
                self._upstream,
                int(parameters.get("ttl_s") or 45),
            )
            await tidb.start()
            self._tidbs[address] = tidb
            return {}
        found = self._tidbs.get(address)
        if found is None:
            raise RequestRejected(409, f"no TiDB runs at {address}")
        if step == "begin":
            return {"start_ts": await found.begin(str(parameters.get("key", "k")).encode())}
        if step == "prewrite":
            return {"prewritten": found.prewrite(start_ts)}
        if step == "commit":
            return {"commit_ts": await found.commit(start_ts)}
        if step == "reconnect":
            await found.reconnect(self._writer({}))
            return {}
        if step == "isolate":
            await found.isolate()
            return {}
        if step == "kill":
            await self._tidbs.pop(address).kill()
            return {}
        raise RequestRejected(
            400, f"do {step!r}: one of start, begin, prewrite, commit, reconnect, isolate, kill"
        )

    async def collect_garbage(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """POST /gc: TiDB's GC worker runs."""
        safe_point = self._pd.collect_garbage(int(parameters.get("safe_point") or 0))
        for kept in (self._upstream.store, self._upstream.versions, self._upstream.commits):
            kept.drop(safe_point)
        return {"safe_point": safe_point}

    async def have_accident(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """POST /accident: beside a workload, too."""
        names = tuple(str(parameters.get(name) or "") for name in ("schema", "table"))
        happened = self.work.last_played()
        table = self._versions.catalog(
            await self.oracle.take() if happened is None else happened
        ).find(*names)
        if table is None:
            raise RequestRejected(400, f"{'.'.join(names)}: there is no such table")
        if happened is not None and table.id in self._emptied:
            raise RequestRejected(409, f"{table.full_name} has had its accident")
        self._emptied.add(table.id)
        writer = self._writer({})
        await self.work.open(writer)
        try:
            return asdict(await delete_everything(table, writer, self._upstream, happened))
        finally:
            await writer.close()

    async def commit_writes(self, writes: WriteTransaction) -> int:
        """Commit what a session of the SQL port wrote; return the commit_ts. Raises SQLError."""
        if self.recording is not None and self.work.state in ("idle", "replaying"):
            raise SQLError(
                server_errors.UNKNOWN_ERROR,
                "the stand-in's recording isn't over: `sluice replay` plays it, then rows can be"
                " written",
            )
        async with self._writing:
            start_ts = await self.oracle.take()
            await asyncio.to_thread(writes.check_unchanged, start_ts)
            writer = self._writer({})
            try:
                await self.work.open(writer)
                return await commit_rows(
                    mutations(writes.tables()), start_ts, writer, self._upstream
                )
            except (RequestRejected, PumpWriteError) as error:
                raise SQLError(
                    server_errors.UNKNOWN_ERROR, f"critical error: write binlog failed: {error}"
                ) from error
            finally:
                await writer.close()

    async def add_column(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """POST /column: beside a workload, too, whose rows have NULL there, or the text `default`.

        `binlogs`: as of POST /workload. It returns when TiDB's history has it.
        """
        names = tuple(str(parameters.get(name) or "") for name in ("schema", "table", "name"))
        catalog = self._versions.catalog(await self.oracle.take())
        table = catalog.find(*names[:2])
        if table is None or not names[2]:
            raise RequestRejected(
                400,
                f"a column {names[2]!r} for {'.'.join(names[:2])}: there is no such table, or no"
                " name",
            )
        writer = self._writer(parameters)
        await self.work.open(writer)
        try:
            state = self._upstream
            ddl = DDLWriter(writer, state.oracle, state.store, state.history, state.versions)
            column = ColumnSpec(names[2], column_types.BIGINT, 20, "BIGINT", nullable=True)
            if default := str(parameters.get("default") or ""):
                sql = f"VARCHAR(40) DEFAULT {literal(default)}"
                column = ColumnSpec(
                    names[2],
                    column_types.VARCHAR,
                    40,
                    sql,
                    text=True,
                    nullable=True,
                    default=default,
                )
            await ddl.add_column(table, catalog.infos[table.id], column)
        finally:
            await writer.close()
        return await self.status({})

    async def disturb_change_data(self, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        """POST /change-data: one of ACCIDENTS befalls the subscribers.

        The answer is that of GET.
        """
        accident = ACCIDENTS.get(str(parameters.get("do")))
        if accident is None:
            raise RequestRejected(
                400, f"do {parameters.get('do')!r}: one of {', '.join(ACCIDENTS)}"
            )
        try:
            accident(self.changes, parameters)
        except (KeyError, TypeError, ValueError) as error:
            raise RequestRejected(
                400, f"{parameters['do']}: {error!r} is missing or wrong"
            ) from error
        return await self.list_subscriptions({})

    async def list_subscriptions(self, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the answer of GET /change-data: regions, their stores, and each one's subscribers.

        Of the subscribers the number is given.
        """
        return list(regions_of(self.changes))

    async def list_commits(self, parameters: dict[str, Any]) -> list[list[Any]]:
        """Return the answer of GET /commits."""
        try:
            after, limit = (
                int(parameters.get("after") or 0),
                int(parameters.get("limit") or _COMMITS_PER_PAGE),
            )
        except (TypeError, ValueError) as error:
            raise RequestRejected(400, "after is a TSO, limit a number of entries") from error
        return [list(entry) for entry in self.commits.after(after, min(limit, _COMMITS_PER_PAGE))]

    def _add_store(self, server: grpc.aio.Server, store_id: int) -> None:
        tikv = TiKVService(self.store, self.regions, store_id)
        pb_grpc.tikv.add_TikvServicer_to_server(tikv, server)  # type: ignore[no-untyped-call] # generated
        server.add_generic_rpc_handlers((self.changes.service(store_id),))

    async def _advance(self) -> None:
        while True:
            await asyncio.sleep(self._options.min_ts_interval_s)
            if self.changes.has_streams:
                # What the oracle gave out last does, too: nothing at or below it is committed later
                # without a lock.
                ts = self.oracle.try_take() or self.oracle.last
                ddl_ts = self._capture.oldest_ddl_ts if self._capture is not None else None
                self.changes.advance(ts if ddl_ts is None else min(ts, ddl_ts))

    def _new_collations(self) -> bool:
        return recorded_new_collations(self.recording) if self.recording else True

    def _writer(self, parameters: dict[str, Any]) -> TransactionWriter:
        strategy = parameters.get("strategy") or "range"
        if strategy not in STRATEGIES:
            raise RequestRejected(400, f"strategy {strategy!r}: one of {', '.join(STRATEGIES)}")
        if self._capture is not None and not parameters.get("binlogs"):
            return self._capture
        pumps = PumpWriter(f"http://{self._address}", self.cluster_id, strategy)
        return pumps if self._capture is None else SeveralWriters((pumps, self._capture))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host or "127.0.0.1", int(port)

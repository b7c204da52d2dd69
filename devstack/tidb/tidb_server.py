"""A TiDB server whose transactions go on step by step, and that can die between two of them.

It writes itself into etcd as TiDB does (tidb/etcd/topology.py), has connections to the pumps of
its own, and leaves behind what a killed TiDB does: keys in etcd until their lease is over, a
Prewrite without an end, a lock in TiKV that is not kept alive.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from dataclasses import dataclass

from sluice.devstack.tidb.commit_log import CommitLog
from sluice.devstack.tidb.ddl_history import DDLHistory
from sluice.devstack.tidb.lease import EtcdLease
from sluice.devstack.tidb.oracle import Oracle
from sluice.devstack.tidb.pump_writer import TransactionWriter
from sluice.devstack.tidb.sql import Versions
from sluice.devstack.tidb.store import Store
from sluice.tidb import PumpWriteError, pb


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """PD's timestamps, TiKV's keys, the DDL jobs that are done, the commits, and the rows.

    The commits are in their order.
    """

    oracle: Oracle
    store: Store
    history: DDLHistory
    commits: CommitLog
    versions: Versions
    """Versions that the SQL port reads."""


_SERVER_INFO_TTL_S = 600


@dataclass(slots=True)
class _Open:
    key: bytes
    prewritten: bool = False


class TiDBServer:
    """One process of a TiDB at `address` (host:port, as advertised).

    Lives on the event loop of the cluster.
    """

    def __init__(
        self,
        address: str,
        etcd_url: str,
        writer: TransactionWriter,
        state: UpstreamState,
        ttl_s: int = 45,
    ) -> None:
        """Create the TiDB server; `ttl_s`: of the topology's lease."""
        self.address = address
        self._writer = writer
        self._oracle, self._store, self._commits = state.oracle, state.store, state.commits
        self._topology, self._info = (
            EtcdLease(etcd_url, ttl_s),
            EtcdLease(etcd_url, _SERVER_INFO_TTL_S),
        )
        self._open: dict[int, _Open] = {}

    async def start(self) -> None:
        """Register and connect to the pumps. PumpWriteError if there is none."""
        host, _, port = self.address.rpartition(":")
        started = int(time.time())
        version = {"version": "8.0.11-TiDB-stand-in", "git_hash": "None"}
        topology = {
            **version,
            "ip": host,
            "start_timestamp": started,
            "deploy_path": "/",
            "status_port": 10080,
            "labels": {},
        }
        ident = str(uuid.uuid4())
        server = {
            **version,
            "ddl_id": ident,
            "ip": host,
            "listening_port": int(port),
            "status_port": 10080,
            "lease": "45s",
            "binlog_status": "On",
            "start_timestamp": started,
        }
        await self._info.put(
            {f"/tidb/server/info/{ident}": json.dumps(server).encode()}, leased=True
        )
        base = f"/topology/tidb/{self.address}"
        await self._topology.put({f"{base}/info": json.dumps(topology).encode()}, leased=False)
        await self._topology.put({f"{base}/ttl": str(time.time_ns()).encode()}, leased=True)
        await self._writer.open()

    async def begin(self, key: bytes) -> int:
        """Begin a transaction whose Prewrite a pump has and TiKV hasn't; return its start_ts."""
        start_ts = await self._oracle.take()
        self._open[start_ts] = _Open(key)
        value = pb.binlog.PrewriteValue(schema_version=1)
        await self._writer.prewrite(
            start_ts, _binlog(pb.binlog.Prewrite, start_ts, 0, key, value.SerializeToString())
        )
        return start_ts

    def prewrite(self, start_ts: int) -> bool:
        """Write it to TiKV; return False if another client has rolled it back."""
        one = self._open[start_ts]
        one.prewritten = self._store.prewrite(one.key, start_ts)
        return one.prewritten

    async def commit(self, start_ts: int) -> int:
        """Commit what is prewritten, else roll back.

        Returns the commit_ts, 0 if it was rolled back.
        """
        one = self._open.pop(start_ts)
        commit_ts = await self._oracle.take()
        if not one.prewritten or not self._store.commit(one.key, start_ts, commit_ts):
            self._store.rollback(one.key, start_ts)
            await self._finish(start_ts, _binlog(pb.binlog.Rollback, start_ts, 0, one.key))
            return 0
        self._commits.add(commit_ts)
        await self._finish(start_ts, _binlog(pb.binlog.Commit, start_ts, commit_ts, one.key))
        return commit_ts

    async def _finish(self, start_ts: int, binlog: bytes) -> None:
        # new connections don't know which pump it was: that one asks TiKV
        with contextlib.suppress(PumpWriteError):
            await self._writer.finish(start_ts, binlog)

    async def reconnect(self, writer: TransactionWriter) -> None:
        """Lose the connections to the pumps, and open new ones."""
        await self._writer.close()
        self._writer = writer
        await writer.open()

    async def isolate(self) -> None:
        """Take etcd and the pumps from it, as the network may.

        It lives, and so do its transactions.
        """
        await self._writer.close()
        await self._topology.release()
        await self._info.release()

    async def kill(self) -> None:
        """Die as by kill -9: connections closed, nothing finished, leases kept alive no more."""
        await self._writer.close()
        for start_ts, one in self._open.items():
            self._store.abandon(one.key, start_ts)
        self._open.clear()
        await self._topology.release()
        await self._info.release()


def _binlog(tp: int, start_ts: int, commit_ts: int, key: bytes, value: bytes = b"") -> bytes:
    message = pb.binlog.Binlog(
        tp=tp,  # type: ignore[arg-type]
        start_ts=start_ts,
        commit_ts=commit_ts,
        prewrite_key=key,
        ddl_job_id=0,
        ddl_schema_state=0,
    )
    if value:
        message.prewrite_value = value
    encoded: bytes = message.SerializeToString()
    return encoded

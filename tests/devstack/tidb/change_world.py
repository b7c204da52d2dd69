"""A stand-in TiKV without a cluster around it: transactions and accidents step by step, and a model
of both.

The model is a list of transactions; it knows nothing of regions, streams or locks' events.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

import grpc

from sluice.devstack.tidb.change_data import ChangeData
from sluice.devstack.tidb.mvcc_records import Change
from sluice.devstack.tidb.oracle import Oracle
from sluice.devstack.tidb.pd import PDService
from sluice.devstack.tidb.regions import RegionMap
from sluice.devstack.tidb.store import Store
from sluice.devstack.tidb.tikv import TiKVService
from sluice.tidb import pb_grpc
from sluice.tidb.codec.memcomparable import encode_bytes

CLUSTER_ID = 7096212345678901234


@dataclass
class OpenTransaction:
    start_ts: int
    changes: dict  # key -> value or None
    old: dict
    primary: bytes = b""
    prewritten: list = field(default_factory=list)
    commit_ts: int = 0
    unresolved: list = field(default_factory=list)


class World:
    """Stores at ports of their own, with PD on the first.

    `model` is {(commit_ts, start_ts): {key: (value, old)}}.
    """

    def __init__(self, store_count=1, splits=(), credentials=None):
        """`credentials`: of servers that speak TLS."""
        self._credentials = credentials
        self.oracle = Oracle()
        self.store = Store(lambda: self.oracle.last)
        self.regions = RegionMap(1, list(splits))
        self.changes = ChangeData(CLUSTER_ID, self.store, self.regions)
        self.store_ids = range(1, store_count + 1)
        self.addresses = {}
        self.model = {}
        self._now = {}  # key -> value, as the newest transaction left it
        self._last = {}  # key -> newest commit_ts
        self._locked = set()
        self._servers = []

    async def start(self):
        for store_id in self.store_ids:
            server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
            port = (
                server.add_insecure_port("127.0.0.1:0")
                if self._credentials is None
                else server.add_secure_port("127.0.0.1:0", self._credentials)
            )
            self.addresses[store_id] = f"127.0.0.1:{port}"
            pb_grpc.tikv.add_TikvServicer_to_server(
                TiKVService(self.store, self.regions, store_id), server
            )
            server.add_generic_rpc_handlers((self.changes.service(store_id),))
            self._servers.append(server)
        url = f"{'http' if self._credentials is None else 'https'}://{self.addresses[1]}"
        self.pd_url = url
        pd = self.pd = PDService(CLUSTER_ID, url, self.addresses, self.oracle, self.regions)
        pb_grpc.pd.add_PDServicer_to_server(pd, self._servers[0])
        for server in self._servers:
            await server.start()

    async def stop(self):
        self.changes.break_streams()
        for server in self._servers:
            await server.stop(0)

    def tso(self):
        ts = self.oracle.try_take()
        assert ts
        return ts

    def tick(self):
        """Let resolved timestamps advance; returns the one that they are made of."""
        ts = self.tso()
        self.changes.advance(ts)
        return ts

    # ---- transactions --------------------------------------------------------------------------

    def begin(self, changes):
        """Begin a transaction of {key: value or None}.

        Keys that another one has locked are left out.
        """
        start_ts = self.tso()
        free = {key: value for key, value in changes.items() if key not in self._locked}
        self._locked |= free.keys()
        old = {key: self._now.get(key) for key in free}
        return OpenTransaction(start_ts, free, old, next(iter(free), b""))

    def prewrite(self, txn, count=None):
        """Prewrite the next `count` keys, or all that are left, by one command."""
        left = [key for key in txn.changes if key not in txn.prewritten][:count]
        if left:
            self.store.prewrite_all(
                {key: Change(txn.changes[key]) for key in left}, txn.start_ts, txn.primary
            )
            txn.prewritten += left

    def commit(self, txn, *, calculated=False):
        """Commit the primary; its timestamp is PD's, or calculated as for async commit."""
        self.prewrite(txn)
        if not txn.changes:
            return 0
        txn.commit_ts = self._calculated(txn) if calculated else self.tso()
        self._note(txn)
        self.store.commit(txn.primary, txn.start_ts, txn.commit_ts)
        self._locked.discard(txn.primary)
        txn.unresolved = [key for key in txn.changes if key != txn.primary]
        return txn.commit_ts

    def commit_secondary(self, txn):
        """Commit one more key of a transaction whose primary is; False if there is none left."""
        if not txn.unresolved:
            return False
        key = txn.unresolved.pop()
        self.store.commit(key, txn.start_ts, txn.commit_ts)
        self._locked.discard(key)
        return True

    def commit_all(self, txn, *, calculated=False):
        """Commit all keys."""
        self.commit(txn, calculated=calculated)
        while self.commit_secondary(txn):
            pass
        return txn.commit_ts

    def one_phase(self, changes):
        """Commit a transaction in one phase."""
        txn = self.begin(changes)
        if not txn.changes:
            return 0
        txn.commit_ts = self._calculated(txn)
        self._note(txn)
        changed = {key: Change(value) for key, value in txn.changes.items()}
        self.store.put_all(changed, txn.start_ts, txn.commit_ts)
        self._locked -= txn.changes.keys()
        return txn.commit_ts

    def rollback(self, txn):
        """Roll back what is prewritten."""
        for key in txn.prewritten:
            self.store.rollback(key, txn.start_ts)
        self._locked -= txn.changes.keys()

    def put(self, **changes):
        """Commit {key: value} in two phases, at once."""
        txn = self.begin({key.encode(): value for key, value in changes.items()})
        return self.commit_all(txn)

    def _calculated(self, txn):
        return (
            max(self.changes.max_ts, txn.start_ts, *(self._last.get(key, 0) for key in txn.changes))
            + 1
        )

    def _note(self, txn):
        rows = {key: (value, txn.old[key] or b"") for key, value in txn.changes.items()}
        self.model[txn.commit_ts, txn.start_ts] = rows
        for key, value in txn.changes.items():
            self._now[key], self._last[key] = value, txn.commit_ts

    def expected(self, after_ts, ts):
        """Return the model's transactions with after_ts < commit_ts <= ts, in order, without what
        changes nothing.
        """
        found = {
            key: effective(self.model[key]) for key in sorted(self.model) if after_ts < key[0] <= ts
        }
        return {key: rows for key, rows in found.items() if rows}


def effective(rows):
    """Leave out deletes of what there wasn't."""
    return {key: row for key, row in rows.items() if row != (None, b"")}


@contextlib.asynccontextmanager
async def world(store_count=1, splits=()):
    made = World(store_count, splits)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def until(condition, tick=lambda: None, timeout_s=30.0):
    """Wait until a condition comes true, and call `tick` meanwhile."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true"
        tick()
        await asyncio.sleep(0.005)


class Schedule:
    """Takes a world through steps that Hypothesis makes up."""

    def __init__(self, made, seed):
        self.made, self.seed = made, seed
        self.open, self.ending = [], []

    async def take(self, step, what):
        """Do one step; one that is impossible now does nothing."""
        made, changes = self.made, self.made.changes
        if step == "begin":
            self.open.append(made.begin(what))
        elif step == "one phase":
            made.one_phase(what)
        elif step in ("prewrite", "commit", "calculated", "rollback") and self.open:
            txn = self.open[what % len(self.open)]
            if step == "prewrite":
                made.prewrite(txn, 1)
                return
            self.open.remove(txn)
            if step == "rollback":
                made.rollback(txn)
            else:
                made.commit(txn, calculated=step == "calculated")
                self.ending.append(txn)
        elif step == "secondary" and self.ending:
            txn = self.ending[what % len(self.ending)]
            if not made.commit_secondary(txn):
                self.ending.remove(txn)
        elif step == "tick":
            made.tick()
            await asyncio.sleep(0.002)  # for some of it to arrive
        elif step == "split":
            changes.split(what)
        elif step in ("merge", "congest", "to 1", "to 2"):
            region_id = made.regions.at(encode_bytes(what)).id
            if step in ("merge", "congest"):
                getattr(changes, step)(region_id)
            else:
                changes.transfer(region_id, int(step[-1]), is_known=bool(self.seed % 2))
        elif step == "break":
            changes.break_streams()
        elif step == "busy":
            changes.busy_registrations = 2
        elif step == "repeat":
            changes.repeated_commands = 8
        elif step == "shake":
            changes.shaken = random.Random(self.seed)
        elif step == "hold":
            changes.scans_may_run.clear()
        elif step == "release":
            changes.scans_may_run.set()

    def finish(self):
        """End all transactions and all that stands in the way of subscribers."""
        for number, txn in enumerate(self.open):
            self.made.rollback(txn) if number % 2 else self.made.commit_all(txn)
        for txn in self.ending:
            while self.made.commit_secondary(txn):
                pass
        self.made.changes.scans_may_run.set()
        self.made.changes.shaken = None
        self.made.changes.busy_registrations = 0

"""A client of TiKV's transactional reads, and of what became of a transaction.

Keys are raw user keys. A call is retried through region errors, silent stores and locks until its
deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from sluice.errors import SluiceError
from sluice.tidb import pb, tso
from sluice.tidb.backoff import Backoff, Deadline
from sluice.tidb.grpc_lite import UnaryConnection, UnaryEndpoint, UseFullGrpc
from sluice.tidb.pd import PDClient, PDError, Peer, Region
from sluice.tidb.rpc import TLS, Channels, ClosedError, describe
from sluice.tidb.tikv.mvcc import Mvcc, MvccLock, MvccWrite, TxnKind, TxnStatus
from sluice.tidb.tikv.region_cache import RegionCache


class TiKVError(SluiceError):
    """TiKV could not answer.

    The message names the call, the key (hex), the region and the last failure.
    """

    transient = True
    hint = "see whether TiKV runs and can be reached from here"


# Region errors: (kind of wait, base ms, cap ms); what else is done about them is in _handle.
_BACKOFF_MS: dict[str, tuple[int, int]] = {
    "stale_command": (2, 1000),
    "max_timestamp_not_synced": (2, 500),
    "read_index_not_ready": (2, 500),
    "proposal_in_merging_mode": (2, 500),
    "data_is_not_ready": (2, 2000),
    "region_not_initialized": (2, 1000),
    "disk_full": (500, 5000),
    "recovery_in_progress": (100, 10_000),
    "is_witness": (1000, 10_000),
}
_MAX_PARALLEL_MVCC = 16
"""Calls under way at once: more gain nothing in one Python process."""
_FATAL_ERRORS = {"raft_entry_too_large", "flashback_in_progress", "flashback_not_prepared"}


@dataclass(frozen=True, slots=True)
class _Call:
    """A call under way: the key it is about, and the waits that all its attempts share."""

    method: str
    key: bytes
    backoff: Backoff


class PendingGet:
    """A key's value that has been asked for."""

    def __init__(
        self, tikv: TiKVClient, connection: UnaryConnection, stream: int, key: bytes, ts: int
    ) -> None:
        self._tikv, self._key, self._ts = tikv, key, ts
        self._connection, self._stream = connection, stream

    def result(self) -> bytes | None:
        """Return the value as `TiKVClient.get` does, which reads it where this call failed."""
        try:
            answer = pb.tikv.GetResponse.FromString(self._connection.finish(self._stream))
        except (UseFullGrpc, DecodeError):
            self._tikv._drop_unary()
        else:
            if not answer.HasField("error") and not answer.HasField("region_error"):
                return bytes(answer.value) or None
        return self._tikv.get(self._key, self._ts)


class TiKVClient:
    """Thread-safe. `timeout_s` bounds a call with all its retries, `rpc_timeout_s` one attempt.

    All calls raise TiKVError, also when PD can't be reached.
    """

    def __init__(
        self,
        pd: PDClient,
        *,
        tls: TLS | None = None,
        timeout_s: float = 30.0,
        rpc_timeout_s: float = 10.0,
    ) -> None:
        self._pd = pd
        self._timeout_s = timeout_s
        self._rpc_timeout_s = rpc_timeout_s
        self._cache = RegionCache(pd)
        self._channels = Channels(tls)
        self._is_plain = tls is None
        self._unary: UnaryEndpoint | None = None
        """The store that `begin_get` asked last."""
        self._closed = threading.Event()

    def begin_get(self, key: bytes, ts: int) -> PendingGet | None:
        """Begin `get`, while the caller does something else; None where only `get` is possible.

        For one thread. A call by grpcio costs ten times as much, and would need another thread.
        """
        if not self._is_plain or self._closed.is_set():
            return None
        try:
            region = self._cache.locate(key)
            peer = self._cache.leader_of(region)
            address = self._cache.address(peer.store_id)
        except PDError:
            return None
        if self._unary is None or self._unary.url != address:
            self._drop_unary()
            self._unary = UnaryEndpoint(address)
        if (connection := self._unary.connection()) is None:
            return None
        request = pb.tikv.GetRequest(key=key, version=ts, context=_context(region, peer))
        try:
            stream = connection.begin("/tikvpb.Tikv/KvGet", request.SerializeToString())
        except UseFullGrpc:
            self._drop_unary()
            return None
        return PendingGet(self, connection, stream, key, ts)

    def _drop_unary(self) -> None:
        if self._unary is not None:
            self._unary.failed()

    def get(self, key: bytes, ts: int) -> bytes | None:
        """Return the value of a key as of a TSO, None if it has none.

        TiKV stores no empty values, and before 4.0 it answers with one, without `not_found`, for a
        key that isn't there.
        """
        backoff = self._backoff()
        while True:
            request = pb.tikv.GetRequest(key=key, version=ts)
            response = self._send("KvGet", key, request, pb.tikv.GetResponse, backoff)[1]
            if not response.HasField("error"):
                return bytes(response.value) or None
            self._key_error("KvGet", key, response.error, backoff)

    def scan(
        self, start: bytes, end: bytes, ts: int, limit: int = 256, *, keys_only: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values with start <= key < end as of a TSO, ascending.

        An empty end is unbounded. `keys_only`: the values stay in TiKV, and are empty here.

        `limit` pairs travel at a time; each such step has the whole time-out.
        """
        key = start
        backoff = self._backoff()
        while not end or key < end:
            region = self._locate("KvScan", key, backoff)
            stop = min((bound for bound in (end, region.end_key) if bound), default=b"")
            request = pb.tikv.ScanRequest(
                start_key=key, end_key=stop, limit=limit, version=ts, key_only=keys_only
            )
            response = self._scan_step(key, region, request, backoff)
            if response is None:
                continue
            last = key
            for pair in response.pairs:
                last = pair.key
                yield pair.key, pair.value
            backoff = (
                self._backoff()
            )  # all attempts at one step share one; what the caller does meanwhile doesn't count
            if len(response.pairs) >= limit:
                key = last + b"\x00"
            elif not region.end_key:
                return
            else:
                key = region.end_key

    def mvcc_get(self, key: bytes) -> Mvcc:
        """Return the lock and the records of a key. Reads only."""
        backoff = self._backoff()
        request = pb.tikv.MvccGetByKeyRequest(key=key)
        response = self._send("MvccGetByKey", key, request, pb.tikv.MvccGetByKeyResponse, backoff)[
            1
        ]
        if response.error:
            raise TiKVError(f"MvccGetByKey of key {key.hex()}: {response.error}")
        info = response.info
        held = info.lock
        lock = (
            MvccLock(held.start_ts, held.primary, held.ttl, held.type)
            if info.HasField("lock")
            else None
        )
        writes = (
            MvccWrite(w.type, w.start_ts, w.commit_ts, w.has_overlapped_rollback)
            for w in info.writes
        )
        return Mvcc(lock, tuple(writes))

    def mvcc_get_many(self, keys: Collection[bytes]) -> dict[bytes, Mvcc]:
        """Return `mvcc_get` of each key, several at a time."""
        wanted = list(keys)
        with ThreadPoolExecutor(
            min(_MAX_PARALLEL_MVCC, len(wanted) or 1), thread_name_prefix="tikv-mvcc"
        ) as threads:
            return dict(zip(wanted, threads.map(self.mvcc_get, wanted), strict=True))

    def check_txn_status(
        self,
        primary: bytes,
        start_ts: int,
        caller_start_ts: int,
        current_ts: int,
        *,
        rollback_if_not_exist: bool,
    ) -> TxnStatus:
        """Return the outcome of a transaction, by its primary key.

        This WRITES: an expired lock is rolled back, and with `rollback_if_not_exist` a transaction
        without any trace too. Never pass a timestamp above PD's: TiKV's own clock follows it.
        `Mvcc.status` reads only, call it first.
        """
        backoff = self._backoff()
        request = pb.tikv.CheckTxnStatusRequest(
            primary_key=primary,
            lock_ts=start_ts,
            caller_start_ts=caller_start_ts,
            current_ts=current_ts,
            rollback_if_not_exist=rollback_if_not_exist,
        )
        response = self._send(
            "KvCheckTxnStatus", primary, request, pb.tikv.CheckTxnStatusResponse, backoff
        )[1]
        if response.HasField("error"):
            if response.error.HasField("txn_not_found"):
                return TxnStatus(TxnKind.NOT_FOUND)
            raise TiKVError(
                f"KvCheckTxnStatus of transaction {start_ts}, primary {primary.hex()}:"
                f" {_error_text(response.error)}"
            )
        if response.lock_ttl:
            return TxnStatus(TxnKind.LOCKED, ttl_ms=response.lock_ttl)
        if response.commit_version:
            return TxnStatus(TxnKind.COMMITTED, commit_ts=response.commit_version)
        if response.action in (
            pb.tikv.NoAction,
            pb.tikv.TTLExpireRollback,
            pb.tikv.LockNotExistRollback,
        ):
            return TxnStatus(TxnKind.ROLLED_BACK)
        return TxnStatus(TxnKind.UNDECIDED)

    def call(self, method: str, key: bytes, request: Any, response_type: Any) -> tuple[Region, Any]:
        """Send a request to a key's region, and return the region that answered and its response.

        Its key errors are the caller's.
        """
        return self._send(method, key, request, response_type, self._backoff())

    def close(self) -> None:
        """Close the connections; the PD client stays open."""
        self._closed.set()
        self._drop_unary()
        self._channels.close()

    def __enter__(self) -> TiKVClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _backoff(self) -> Backoff:
        return Backoff(Deadline(self._timeout_s), self._closed.wait)

    def _channel(self, address: str) -> grpc.Channel:
        try:
            return self._channels.get(address)
        except ClosedError as error:
            raise TiKVError("the TiKV client is closed") from error
        except OSError as error:
            raise TiKVError(f"TLS to TiKV at {address}: {error}") from error

    def _locate(self, method: str, key: bytes, backoff: Backoff) -> Region:
        while True:
            try:
                return self._cache.locate(key)
            except PDError as error:
                if not backoff.wait("pd", 500, 3000):
                    raise TiKVError(
                        f"{method}: region of key {key.hex()} unknown: {error}"
                    ) from error

    def _send(
        self, method: str, key: bytes, request: Any, response_type: Any, backoff: Backoff
    ) -> tuple[Region, Any]:
        """Send a request for one key until a region serves it."""
        while True:
            region = self._locate(method, key, backoff)
            response = self._attempt(_Call(method, key, backoff), region, request, response_type)
            if response is not None:
                return region, response

    def _attempt(self, call: _Call, region: Region, request: Any, response_type: Any) -> Any | None:
        """Send the request once.

        None: the region couldn't serve it; the cache is corrected, the wait is over, locate again.
        """
        try:
            peer = self._cache.leader_of(region)
            address = self._cache.address(peer.store_id)
        except PDError as error:
            self._cache.invalidate(region)
            self._wait(call, region, "pd", (500, 3000), str(error))
            return None
        request.context.CopyFrom(_context(region, peer))
        try:
            rpc = self._channel(address).unary_unary(
                f"/tikvpb.Tikv/{call.method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response_type.FromString,
            )
            response = rpc(
                request, timeout=max(0.05, min(self._rpc_timeout_s, call.backoff.deadline.left()))
            )
        except ValueError as error:
            raise TiKVError(f"{call.method}: the TiKV client is closed") from error
        except grpc.RpcError as error:
            self._cache.forget_store(peer.store_id)
            self._cache.next_peer(region)
            self._wait(call, region, "rpc", (100, 2000), f"store {address}: {describe(error)}")
            return None
        if not response.HasField("region_error"):
            return response
        self._handle(call, region, peer, response.region_error)
        return None

    def _handle(self, call: _Call, region: Region, peer: Peer, error: pb.errorpb.Error) -> None:
        kind = next(
            (field.name for field, _ in error.ListFields() if field.name != "message"), "unknown"
        )
        words = f"{kind}: {error.message}"
        if kind in _FATAL_ERRORS:
            raise TiKVError(f"{call.method} of key {call.key.hex()} in region {region.id}: {words}")
        if kind == "not_leader":
            leader = error.not_leader.leader
            if leader.id:
                self._cache.switch_leader(region, Peer(leader.id, leader.store_id, leader.role))
                # At once, as a rule; the tiny wait is for two stores that name each other.
                self._wait(call, region, "leader", (1, 500), words)
                return
            self._cache.invalidate(region)
            self._wait(call, region, "no_leader", (2, 500), words)
        elif kind == "epoch_not_match":
            current = list(error.epoch_not_match.current_regions)
            if not current:
                self._cache.invalidate(region)
            elif not self._cache.replace(region, current):
                self._wait(call, region, "epoch", (2, 500), words)
                return
            self._wait(call, region, "epoch_new", (1, 500), words)
        elif kind == "server_is_busy":
            base = error.server_is_busy.backoff_ms or 2000
            self._wait(call, region, kind, (base, max(base, 10_000)), words)
        elif kind in _BACKOFF_MS:
            self._wait(call, region, kind, _BACKOFF_MS[kind], words)
        else:  # such as region_not_found, key_not_in_region, store_not_match, mismatch_peer_id
            self._cache.invalidate(region)
            if kind == "store_not_match":
                self._cache.forget_store(peer.store_id)
            self._wait(call, region, "lookup", (2, 500), words)

    def _wait(
        self, call: _Call, region: Region, kind: str, bounds: tuple[float, float], words: str
    ) -> None:
        """Wait before the next attempt.

        `bounds`: the first wait and the longest of this kind, in ms.
        """
        if self._closed.is_set():
            raise TiKVError(f"{call.method}: the TiKV client is closed")
        if not call.backoff.wait(kind, *bounds):
            raise TiKVError(
                f"{call.method} of key {call.key.hex()} in region {region.id} failed for"
                f" {call.backoff.deadline.seconds:g} s; "
                f"last failure: {words}"
            )

    def _scan_step(
        self, key: bytes, region: Region, request: pb.tikv.ScanRequest, backoff: Backoff
    ) -> pb.tikv.ScanResponse | None:
        """Read one page, free of locks. None: locate the key again."""
        while True:
            response: pb.tikv.ScanResponse | None = self._attempt(
                _Call("KvScan", key, backoff), region, request, pb.tikv.ScanResponse
            )
            if response is None:
                return None
            errors = [(pair.key, pair.error) for pair in response.pairs if pair.HasField("error")]
            if response.HasField("error"):
                errors.insert(0, (key, response.error))
            if not errors:
                return response
            self._key_error("KvScan", *errors[0], backoff)

    def _key_error(
        self, method: str, key: bytes, error: pb.tikv.KeyError, backoff: Backoff
    ) -> None:
        """Wait for a lock, and resolve it if its transaction is dead.

        TiKVError for any other error.
        """
        if not error.HasField("locked"):
            raise TiKVError(f"{method} of key {key.hex()}: {_error_text(error)}")
        lock = error.locked
        if not backoff.wait("locked", 50, 3000):
            raise TiKVError(
                f"{method}: key {key.hex()} stayed locked for {backoff.deadline.seconds:g} s by"
                f" transaction {lock.lock_version}, primary {lock.primary_lock.hex()}"
            )
        try:
            now = self._pd.tso()
        except PDError as pd_error:
            raise TiKVError(
                f"{method}: key {key.hex()} is locked and PD gives no timestamp: {pd_error}"
            ) from pd_error
        if tso.physical_ms(lock.lock_version) + lock.lock_ttl >= tso.physical_ms(now):
            return
        status = self.check_txn_status(
            lock.primary_lock, lock.lock_version, 0, now, rollback_if_not_exist=True
        )
        if status.kind not in (TxnKind.COMMITTED, TxnKind.ROLLED_BACK):
            return
        request = pb.tikv.ResolveLockRequest(
            start_version=lock.lock_version, commit_version=status.commit_ts, keys=[lock.key or key]
        )
        response = self._send(
            "KvResolveLock", lock.key or key, request, pb.tikv.ResolveLockResponse, backoff
        )[1]
        if response.HasField("error"):
            raise TiKVError(f"KvResolveLock of key {key.hex()}: {_error_text(response.error)}")


def _context(region: Region, peer: Peer) -> pb.tikv.Context:
    return pb.tikv.Context(
        region_id=region.id,
        region_epoch=pb.metapb.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
        peer=pb.metapb.Peer(id=peer.id, store_id=peer.store_id),
    )


def _error_text(error: pb.tikv.KeyError) -> str:
    return " ".join(str(error).split()) or "unknown key error"

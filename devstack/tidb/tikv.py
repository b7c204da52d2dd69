"""The stand-in TiKV: snapshot reads, the fate of transactions, their locks.

Each is behind the region check.
"""

from __future__ import annotations

from typing import Any

import grpc

from sluice.devstack.tidb.mvcc_records import Lock, Locked, TxnNotFound
from sluice.devstack.tidb.regions import RegionMap
from sluice.devstack.tidb.store import Store
from sluice.tidb import pb, pb_grpc
from sluice.tidb.codec.memcomparable import encode_bytes


class TiKVService(pb_grpc.tikv.TikvServicer):
    """tikvpb.Tikv, as far as readers of binlogs use it; what is not here answers UNIMPLEMENTED."""

    def __init__(self, store: Store, regions: RegionMap, store_id: int) -> None:
        self._store = store
        self._regions = regions
        self._store_id = store_id

    async def KvGet(self, request: Any, context: grpc.aio.ServicerContext) -> pb.tikv.GetResponse:
        wrong = self._check(request.context, [request.key])
        if wrong:
            return pb.tikv.GetResponse(region_error=wrong)
        try:
            value = self._store.get(request.key, request.version, _ignored(request.context))
        except Locked as error:
            return pb.tikv.GetResponse(error=_key_error(error.lock))
        return pb.tikv.GetResponse(value=value or b"", not_found=value is None)

    async def KvScan(self, request: Any, context: grpc.aio.ServicerContext) -> pb.tikv.ScanResponse:
        wrong = self._check(request.context, [] if request.reverse else [request.start_key])
        if wrong:
            return pb.tikv.ScanResponse(region_error=wrong)
        first, last = request.start_key, request.end_key
        if request.reverse:  # from start_key (exclusive) down to end_key
            first, last = last, first
        # A scan stays in its region: the client goes on in the next one.
        first = max(first, self._regions.start_of(request.context.region_id))
        region_end = self._regions.end_of(request.context.region_id)
        if region_end and (not last or region_end < last):
            last = region_end
        pairs: list[pb.tikv.KvPair] = []
        for key in self._store.scan(first, last, reverse=request.reverse):
            if len(pairs) >= request.limit:
                break
            pair = self._pair(key, request)
            if pair is not None:
                if request.key_only:
                    pair.ClearField("value")
                pairs.append(pair)
        return pb.tikv.ScanResponse(pairs=pairs)

    async def KvCheckTxnStatus(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.tikv.CheckTxnStatusResponse:
        wrong = self._check(request.context, [request.primary_key])
        if wrong:
            return pb.tikv.CheckTxnStatusResponse(region_error=wrong)
        try:
            status = self._store.check_txn_status(
                request.primary_key,
                request.lock_ts,
                request.current_ts,
                rollback_if_not_exist=request.rollback_if_not_exist,
            )
        except TxnNotFound:
            missing = pb.tikv.TxnNotFound(start_ts=request.lock_ts, primary_key=request.primary_key)
            return pb.tikv.CheckTxnStatusResponse(error=pb.tikv.KeyError(txn_not_found=missing))
        answer = pb.tikv.CheckTxnStatusResponse(commit_version=status.commit_ts)
        answer.action = status.action  # type: ignore[assignment]
        if status.lock:
            answer.lock_ttl = status.lock.ttl_ms
            answer.lock_info.CopyFrom(_lock_info(status.lock))
        return answer

    async def KvResolveLock(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.tikv.ResolveLockResponse:
        wrong = self._check(request.context, list(request.keys))
        if wrong:
            return pb.tikv.ResolveLockResponse(region_error=wrong)
        region = self._regions.by_id(request.context.region_id)
        assert region is not None  # checked
        for key in list(request.keys) or self._store.locked_keys(request.start_version):
            if region.holds(encode_bytes(key)):
                self._store.resolve_lock(key, request.start_version, request.commit_version)
        return pb.tikv.ResolveLockResponse()

    async def KvScanLock(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.tikv.ScanLockResponse:
        wrong = self._check(request.context, [request.start_key])
        if wrong:
            return pb.tikv.ScanLockResponse(region_error=wrong)
        region_id = request.context.region_id
        start, end = max(request.start_key, self._regions.start_of(region_id)), request.end_key
        region_end = self._regions.end_of(region_id)
        if region_end and (not end or region_end < end):
            end = region_end
        locks = self._store.locks(start, end, request.max_version)
        if request.limit:
            locks = locks[: request.limit]
        return pb.tikv.ScanLockResponse(locks=[_lock_info(lock) for lock in locks])

    async def KvCheckSecondaryLocks(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.tikv.CheckSecondaryLocksResponse:
        wrong = self._check(request.context, list(request.keys))
        if wrong:
            return pb.tikv.CheckSecondaryLocksResponse(region_error=wrong)
        answer = pb.tikv.CheckSecondaryLocksResponse()
        for key in request.keys:
            if key in self._store.locked_keys(request.start_version):
                lock = next(
                    each for each in self._store.locks(key, key + b"\0", request.start_version)
                )
                answer.locks.append(_lock_info(lock))
                continue
            write = self._store.write_of(key, request.start_version)
            if write is None:  # as TiKV does: no transaction may prewrite it from now on
                self._store.rollback(key, request.start_version)
            answer.ClearField("locks")
            answer.commit_ts = 0 if write is None or write.rollback else write.commit_ts
            return answer
        return answer

    async def MvccGetByKey(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.tikv.MvccGetByKeyResponse:
        wrong = self._check(request.context, [request.key])
        if wrong:
            return pb.tikv.MvccGetByKeyResponse(region_error=wrong)
        info = pb.tikv.MvccInfo()
        lock = self._store.lock(request.key)
        if lock:
            info.lock.CopyFrom(
                pb.tikv.MvccLock(
                    type=pb.tikv.Put,
                    start_ts=lock.start_ts,
                    primary=lock.primary or lock.key,
                    ttl=lock.ttl_ms,
                )
            )
        for write in self._store.writes(request.key):
            kind = pb.tikv.Rollback if write.rollback else pb.tikv.Put
            info.writes.add(
                type=kind,
                start_ts=write.start_ts,
                commit_ts=write.commit_ts,
                short_value=write.short_value,
            )
            if write.short_value:
                info.values.add(start_ts=write.start_ts, value=write.short_value)
        return pb.tikv.MvccGetByKeyResponse(info=info)

    def _check(self, context: Any, keys: list[bytes]) -> pb.errorpb.Error | None:
        return self._regions.check(context, keys, self._store_id)

    def _pair(self, key: bytes, request: Any) -> pb.tikv.KvPair | None:
        try:
            value = self._store.get(key, request.version, _ignored(request.context))
        except Locked as error:
            return pb.tikv.KvPair(key=key, error=_key_error(error.lock))
        return None if value is None else pb.tikv.KvPair(key=key, value=value)


def _ignored(context: Any) -> frozenset[int]:
    return frozenset(context.resolved_locks) | frozenset(context.committed_locks)


def _key_error(lock: Lock) -> pb.tikv.KeyError:
    return pb.tikv.KeyError(locked=_lock_info(lock))


def _lock_info(lock: Lock) -> pb.tikv.LockInfo:
    return pb.tikv.LockInfo(
        primary_lock=lock.primary or lock.key,
        lock_version=lock.start_ts,
        key=lock.key,
        lock_ttl=lock.ttl_ms,
        txn_size=1,
    )

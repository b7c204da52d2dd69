"""Resolve the locks of Prewrites that were left, of asynchronous commits among them.

A lock holds its region's resolved timestamp back for ever, also when its TiDB is dead and its table
dropped. So one that its own TiDB will never resolve is resolved as any reader of TiDB does it. The
transaction's primary key shows its outcome. Where that is still locked, the
transaction lives as long as the lock does; an expired one is rolled back. The primary alone doesn't
decide an asynchronous commit. It is committed if all its keys are locked, at the highest of their
timestamps. Otherwise a key without lock shows the outcome.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sluice.tidb import pb, tso
from sluice.tidb.pd import PDClient
from sluice.tidb.tikv.client import TiKVClient, TiKVError

_LOCKS_PER_SCAN = 1024
_MAX_SINGLE_RESOLVES = 16
"""A transaction with more locks in a region has all of them there resolved in one call."""
_WITHOUT_CHANGE = frozenset({pb.tikv.Lock, pb.tikv.PessimisticLock})
"""Types of locks that hold no resolved timestamp back."""
_ROLLED_BACK = frozenset(
    {pb.tikv.NoAction, pb.tikv.TTLExpireRollback, pb.tikv.LockNotExistRollback}
)


@dataclass(frozen=True, slots=True)
class LiveLock:
    """A lock that is left, since its transaction may still commit."""

    key: bytes
    primary: bytes
    start_ts: int
    ttl_ms: int


@dataclass(slots=True)
class LockReport:
    """The result for a range: the number of locks resolved, and those that are left."""

    resolved: int = 0
    live: list[LiveLock] = field(default_factory=list)


class LockResolver:
    """Resolve locks through a TiKV client; thread-safe as that is."""

    def __init__(self, tikv: TiKVClient, pd: PDClient) -> None:
        self._tikv, self._pd = tikv, pd

    def resolve(self, start_key: bytes, end_key: bytes, max_ts: int) -> LockReport:
        """Resolve the locks in a range of raw keys, of transactions that began through `max_ts`.

        An empty end is unbounded. Raises TiKVError, PDError.
        """
        report = LockReport()
        now = self._pd.tso()
        outcomes: dict[int, int | None] = {}
        for locks in self._scan(start_key, end_key, min(max_ts, now)):
            by_transaction: dict[int, list[Any]] = defaultdict(list)
            for lock in locks:
                if lock.lock_type not in _WITHOUT_CHANGE:
                    by_transaction[lock.lock_version].append(lock)
            for start_ts, own in by_transaction.items():
                if start_ts not in outcomes:
                    outcomes[start_ts] = self._outcome(own[0], now)
                commit_ts = outcomes[start_ts]
                if commit_ts is None:
                    report.live += [
                        LiveLock(each.key, each.primary_lock, start_ts, each.lock_ttl)
                        for each in own
                    ]
                else:
                    self._resolve(start_ts, commit_ts, [each.key for each in own])
                    report.resolved += len(own)
        return report

    def _scan(self, start_key: bytes, end_key: bytes, max_ts: int) -> Iterator[list[Any]]:
        """Yield the locks of a range, those of one region at a time."""
        key = start_key
        while not end_key or key < end_key:
            request = pb.tikv.ScanLockRequest(
                max_version=max_ts, start_key=key, limit=_LOCKS_PER_SCAN, end_key=end_key
            )
            region, response = self._tikv.call("KvScanLock", key, request, pb.tikv.ScanLockResponse)
            self._check("KvScanLock", key, response)
            if response.locks:
                yield list(response.locks)
            if len(response.locks) >= _LOCKS_PER_SCAN:
                key = response.locks[-1].key + b"\0"
            elif region.end_key:
                key = region.end_key
            else:
                return

    def _outcome(self, lock: Any, now: int) -> int | None:
        """Return the commit_ts of a lock's transaction, 0 if it is rolled back.

        None if it may still commit.
        """
        is_expired = _is_over(lock.lock_version, lock.lock_ttl, now)
        status = self._status(lock, now, is_expired=is_expired)
        if status is None:
            return None
        primary = status.lock_info
        if primary.use_async_commit and _is_over(lock.lock_version, status.lock_ttl, now):
            commit_ts = self._outcome_of_all(lock, primary)
            if commit_ts is not None:
                self._resolve(
                    lock.lock_version, commit_ts, [lock.primary_lock, *primary.secondaries]
                )
                return commit_ts
            status = self._status(lock, now, is_expired=is_expired, is_synchronous=True)
        if status is None or status.lock_ttl or status.HasField("lock_info"):
            return None
        if status.commit_version:
            return int(status.commit_version)
        return 0 if status.action in _ROLLED_BACK else None

    def _status(
        self, lock: Any, now: int, *, is_expired: bool, is_synchronous: bool = False
    ) -> Any | None:
        """Return TiKV's answer about the primary; None if it isn't known there yet."""
        request = pb.tikv.CheckTxnStatusRequest(
            primary_key=lock.primary_lock,
            lock_ts=lock.lock_version,
            current_ts=now,
            rollback_if_not_exist=is_expired,
            force_sync_commit=is_synchronous,
        )
        response = self._tikv.call(
            "KvCheckTxnStatus", lock.primary_lock, request, pb.tikv.CheckTxnStatusResponse
        )[1]
        if response.HasField("error") and response.error.HasField("txn_not_found"):
            return None
        self._check("KvCheckTxnStatus", lock.primary_lock, response)
        return response

    def _outcome_of_all(self, lock: Any, primary: Any) -> int | None:
        """Return the commit_ts of an asynchronous commit, 0 if it is rolled back.

        None if it isn't an asynchronous one after all.
        """
        commit_ts = int(primary.min_commit_ts)
        for key in primary.secondaries:
            request = pb.tikv.CheckSecondaryLocksRequest(
                keys=[key], start_version=lock.lock_version
            )
            response = self._tikv.call(
                "KvCheckSecondaryLocks", key, request, pb.tikv.CheckSecondaryLocksResponse
            )[1]
            self._check("KvCheckSecondaryLocks", key, response)
            if not response.locks:
                return int(response.commit_ts)
            if not response.locks[0].use_async_commit:
                return None
            commit_ts = max(commit_ts, int(response.locks[0].min_commit_ts))
        return commit_ts

    def _resolve(self, start_ts: int, commit_ts: int, keys: list[bytes]) -> None:
        """Commit or roll back a transaction's locks; TiKV ignores keys that have no lock."""
        single = len(keys) <= _MAX_SINGLE_RESOLVES
        for key in keys if single else keys[:1]:
            request = pb.tikv.ResolveLockRequest(
                start_version=start_ts, commit_version=commit_ts, keys=[key] if single else []
            )
            response = self._tikv.call("KvResolveLock", key, request, pb.tikv.ResolveLockResponse)[
                1
            ]
            self._check("KvResolveLock", key, response)

    @staticmethod
    def _check(method: str, key: bytes, response: Any) -> None:
        if response.HasField("error"):
            words = " ".join(str(response.error).split()) or "unknown key error"
            raise TiKVError(f"{method} of key {key.hex()}: {words}")


def _is_over(start_ts: int, ttl_ms: int, now: int) -> bool:
    return tso.physical_ms(start_ts) + ttl_ms < tso.physical_ms(now)

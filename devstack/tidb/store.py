"""The multi-version key space of the stand-in TiKV.

Three things a reader of binlogs asks TiKV for: values at a timestamp (schema and DDL job history), the fate of a
transaction by its primary key, and the locks of those that are still open. Keys are raw (not memcomparable-wrapped).
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sluice.errors import Signal
from sluice.tidb.tso import physical_ms

# TiDB keeps the lock of a transaction it is still working on alive by heartbeats; this is how long one lasts, in ms.
_LOCK_TTL_MS = 20_000

_SMALL_LOCK_TTL_MS = 3000
"""what TiDB gives the lock of a small transaction, which it sends no heartbeats for"""


@dataclass(frozen=True, slots=True)
class Write:
    """A record of the write column: the transaction `start_ts` committed at `commit_ts`, or rolled back."""

    start_ts: int
    commit_ts: int
    rollback: bool = False
    short_value: bytes = b""


@dataclass(frozen=True, slots=True)
class Lock:
    """An open transaction's lock on its primary key. `ttl_ms` counts from the physical part of start_ts."""

    key: bytes
    start_ts: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class TxnStatus:
    """Answer to KvCheckTxnStatus: one of `lock`, `commit_ts`, or neither with the action taken (kvrpcpb.Action)."""

    lock: Lock | None = None
    commit_ts: int = 0
    action: int = 0


class Locked(Signal):
    """The key is locked by a transaction older than the read."""

    def __init__(self, lock: Lock) -> None:
        super().__init__(f"key {lock.key.hex()} is locked by transaction {lock.start_ts}")
        self.lock = lock


class TxnNotFound(Signal):
    """Neither lock nor record of a transaction, and nothing was to be written about it."""


@dataclass(slots=True)
class _Key:
    versions: list[tuple[int, bytes]] = field(default_factory=list)  # ascending commit_ts
    writes: list[Write] = field(default_factory=list)  # ascending commit_ts
    locks: dict[int, int | None] = field(default_factory=dict)
    """start_ts, oldest first -> ttl (ms); None as long as its TiDB keeps it alive"""


class Store:
    """Not thread-safe; lives on the event loop of the cluster. `now` gives the newest timestamp of the oracle."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._keys: dict[bytes, _Key] = {}
        self._sorted: list[bytes] = []  # keys that have versions
        self._ended: deque[tuple[int, bytes]] = deque()  # commit_ts (of a rollback start_ts), in the order they came

    def put(self, key: bytes, value: bytes, commit_ts: int) -> None:
        """Adds the version of `key` that readers see from `commit_ts` on."""
        entry = self._entry(key)
        if not entry.versions:
            bisect.insort(self._sorted, key)
        bisect.insort(entry.versions, (commit_ts, value))

    def remove(self, key: bytes) -> None:
        """Forgets every version of `key`."""
        entry = self._keys.get(key)
        if entry and entry.versions:
            entry.versions.clear()
            del self._sorted[bisect.bisect_left(self._sorted, key)]

    def get(self, key: bytes, version: int, ignore_locks: frozenset[int] = frozenset()) -> bytes | None:
        """The value at `version`, None if there is none. Raises Locked for an older lock not in `ignore_locks`."""
        entry = self._keys.get(key)
        if entry is None:
            return None
        for start_ts in entry.locks:
            if start_ts <= version and start_ts not in ignore_locks:
                raise Locked(self._lock(key, start_ts))
        at = bisect.bisect_right(entry.versions, version, key=lambda pair: pair[0])
        return entry.versions[at - 1][1] if at else None

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Keys of [start, end) that have any version; an empty `end` means no end."""
        low = bisect.bisect_left(self._sorted, start)
        high = bisect.bisect_left(self._sorted, end) if end else len(self._sorted)
        keys = self._sorted[low:high]
        return iter(reversed(keys) if reverse else keys)

    def prewrite(self, key: bytes, start_ts: int) -> bool:
        """Locks `key` as the primary of `start_ts`; False if somebody has rolled it back, as TiKV then refuses."""
        known = self.write_of(key, start_ts)
        if known is not None and known.rollback:
            return False
        self._entry(key).locks[start_ts] = None
        return True

    def abandon(self, key: bytes, start_ts: int) -> None:
        """The TiDB of `start_ts` is dead: its lock lives on for as long as it was given."""
        entry = self._keys.get(key)
        if entry and start_ts in entry.locks:
            entry.locks[start_ts] = self._lock(key, start_ts).ttl_ms - _LOCK_TTL_MS + _SMALL_LOCK_TTL_MS

    def commit(self, key: bytes, start_ts: int, commit_ts: int, short_value: bytes = b"") -> bool:
        """Commits `start_ts`; False if somebody rolled it back meanwhile, as TiKV then refuses."""
        known = self.write_of(key, start_ts)
        if known is not None:
            return not known.rollback
        entry = self._entry(key)
        entry.locks.pop(start_ts, None)
        bisect.insort(entry.writes, Write(start_ts, commit_ts, short_value=short_value), key=lambda w: w.commit_ts)
        self._ended.append((commit_ts, key))
        return True

    def rollback(self, key: bytes, start_ts: int) -> None:
        """Rolls `start_ts` back, unless it is committed or rolled back already."""
        if self.write_of(key, start_ts) is not None:
            return
        entry = self._entry(key)
        entry.locks.pop(start_ts, None)
        bisect.insort(entry.writes, Write(start_ts, start_ts, rollback=True), key=lambda w: w.commit_ts)
        self._ended.append((start_ts, key))

    def drop(self, safe_point: int) -> None:
        """GC: forgets the fates of transactions that ended through this TSO, where a key has had no other since. (TiKV
        keeps the newest record of each row; here only primary keys have any, for as long as somebody may ask for them.)
        """
        while self._ended and self._ended[0][0] <= safe_point:
            _, key = self._ended.popleft()
            entry = self._keys.get(key)
            if entry and not entry.versions and not entry.locks and entry.writes[-1].commit_ts <= safe_point:
                del self._keys[key]

    def release(self, key: bytes, start_ts: int) -> None:
        """Drops the lock without a record: a transaction of which TiKV knows nothing."""
        if key in self._keys:
            self._keys[key].locks.pop(start_ts, None)

    def writes(self, key: bytes) -> list[Write]:
        """The records of the write column, newest first."""
        entry = self._keys.get(key)
        return entry.writes[::-1] if entry else []

    def lock(self, key: bytes) -> Lock | None:
        """The oldest lock on `key`."""
        entry = self._keys.get(key)
        return self._lock(key, next(iter(entry.locks))) if entry and entry.locks else None

    def write_of(self, key: bytes, start_ts: int) -> Write | None:
        """The record of transaction `start_ts` on its primary key."""
        entry = self._keys.get(key)
        if entry is None:
            return None
        # Records are in order of commit_ts, which is never smaller than start_ts.
        at = bisect.bisect_left(entry.writes, start_ts, key=lambda w: w.commit_ts)
        return next((w for w in entry.writes[at:] if w.start_ts == start_ts), None)

    def check_txn_status(self, key: bytes, lock_ts: int, current_ts: int, *, rollback_if_not_exist: bool) -> TxnStatus:
        """What KvCheckTxnStatus does: it rolls back an expired lock, and, if asked, what it finds nothing of.

        Raises TxnNotFound when there is nothing and nothing was to be written.
        """
        entry = self._keys.get(key)
        if entry and lock_ts in entry.locks:
            lock = self._lock(key, lock_ts)
            if physical_ms(lock_ts) + lock.ttl_ms >= physical_ms(current_ts):
                return TxnStatus(lock=lock)
            self.rollback(key, lock_ts)
            return TxnStatus(action=1)
        known = self.write_of(key, lock_ts)
        if known is not None:
            return TxnStatus() if known.rollback else TxnStatus(commit_ts=known.commit_ts)
        if not rollback_if_not_exist:
            raise TxnNotFound
        self.rollback(key, lock_ts)
        return TxnStatus(action=2)

    def resolve_lock(self, key: bytes, start_ts: int, commit_ts: int) -> None:
        """Ends the lock of `start_ts` on `key`, if there is one: committed, or rolled back when commit_ts is 0."""
        entry = self._keys.get(key)
        if entry and start_ts in entry.locks:
            if commit_ts:
                self.commit(key, start_ts, commit_ts)
            else:
                self.rollback(key, start_ts)

    def locked_keys(self, start_ts: int) -> list[bytes]:
        """Keys that transaction `start_ts` has locked."""
        return [key for key, entry in self._keys.items() if start_ts in entry.locks]

    def _lock(self, key: bytes, start_ts: int) -> Lock:
        fixed = self._keys[key].locks.get(start_ts)
        if fixed is not None:
            return Lock(key, start_ts, fixed)
        age = max(0, physical_ms(self._now()) - physical_ms(start_ts))
        return Lock(key, start_ts, age + _LOCK_TTL_MS)

    def _entry(self, key: bytes) -> _Key:
        return self._keys.setdefault(key, _Key())

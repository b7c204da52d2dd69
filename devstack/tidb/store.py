"""The multi-version key space of the stand-in TiKV.

Three things a reader of binlogs asks TiKV for: values at a timestamp (schema and DDL job history),
the fate of a transaction by its primary key, and the locks of those that are still open. Keys are
raw (not memcomparable-wrapped). With rows in it, it also reports to listeners what each command
changed, which is what change data capture sends.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sluice.devstack.tidb.mvcc_records import (
    Applied,
    Change,
    Lock,
    Locked,
    TxnNotFound,
    TxnStatus,
    Version,
    Write,
)
from sluice.tidb.tso import physical_ms

# TiDB keeps the lock of a transaction it is still working on alive by heartbeats; this is how long
# one lasts, in ms.
_LOCK_TTL_MS = 20_000

_SMALL_LOCK_TTL_MS = 3000
"""TTL that TiDB gives the lock of a small transaction, which it sends no heartbeats for."""

# cdcpb.Event.LogType
_PREWRITE, _COMMIT, _ROLLBACK, _COMMITTED = 1, 2, 3, 4


@dataclass(slots=True)
class _Key:
    versions: list[Version] = field(default_factory=list)  # ascending commit_ts
    writes: list[Write] = field(default_factory=list)  # ascending commit_ts
    locks: dict[int, int | None] = field(default_factory=dict)
    """start_ts, oldest first -> ttl (ms); None as long as its TiDB keeps it alive."""
    changes: dict[int, Change] = field(default_factory=dict)
    """start_ts -> the row that its lock writes."""


class Store:
    """The key space. Not thread-safe; lives on the event loop of the cluster.

    `now` gives the newest timestamp of the oracle.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._keys: dict[bytes, _Key] = {}
        self._sorted: list[bytes] = []  # keys that have versions
        # commit_ts (of a rollback start_ts), in the order they came
        self._ended: deque[tuple[int, bytes]] = deque()
        self._open: dict[int, dict[bytes, bytes]] = {}
        """start_ts -> keys that it has locked -> their primary."""
        self._followers: dict[tuple[bytes, int], list[bytes]] = {}
        """primary and start_ts -> keys whose fate follows it at once."""
        self._listeners: list[Callable[[list[Applied]], None]] = []

    def listen(self, listener: Callable[[list[Applied]], None]) -> None:
        """Call `listener` with what each command changed, after it is applied."""
        self._listeners.append(listener)

    def put(self, key: bytes, value: bytes | None, commit_ts: int, start_ts: int = 0) -> None:
        """Add the version of `key` that readers see from `commit_ts` on; None deletes it."""
        self.put_all({key: Change(value)}, start_ts or commit_ts - 1, commit_ts)

    def put_all(self, changes: Mapping[bytes, Change], start_ts: int, commit_ts: int) -> None:
        """Commit a transaction in one phase, so that it never has locks."""
        rows = []
        for key, change in changes.items():
            entry = self._entry(key)
            old = self._old_value(entry, change, commit_ts - 1)
            version = Version(
                commit_ts, change.value, start_ts, change.txn_source, change.old_value
            )
            self._add_version(key, entry, version)
            rows.append(
                Applied(_COMMITTED, key, start_ts, commit_ts, change.value, old, change.txn_source)
            )
        self._tell(rows)

    def remove(self, key: bytes) -> None:
        """Forget every version of `key`."""
        entry = self._keys.get(key)
        if entry and entry.versions:
            entry.versions.clear()
            del self._sorted[bisect.bisect_left(self._sorted, key)]

    def get(
        self, key: bytes, version: int, ignore_locks: frozenset[int] = frozenset()
    ) -> bytes | None:
        """Return the value at `version`, None if there is none.

        Raises Locked for an older lock not in `ignore_locks`.
        """
        entry = self._keys.get(key)
        if entry is None:
            return None
        for start_ts in entry.locks:
            if start_ts <= version and start_ts not in ignore_locks:
                raise Locked(self._lock(key, start_ts))
        return _value_at(entry, version)

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Yield keys of [start, end) that have any version; an empty `end` means no end."""
        low = bisect.bisect_left(self._sorted, start)
        high = bisect.bisect_left(self._sorted, end) if end else len(self._sorted)
        keys = self._sorted[low:high]
        return iter(reversed(keys) if reverse else keys)

    def history(self, start: bytes, end: bytes, after_ts: int) -> list[Applied]:
        """Return what an incremental scan of [start, end) finds above `after_ts` (TSO).

        Of each key its lock, then its versions, newest first.
        """
        keys = set(self.scan(start, end))
        keys.update(key for lock in self._open.values() for key in lock if _within(key, start, end))
        found: list[Applied] = []
        for key in sorted(keys):
            entry = self._keys[key]
            for start_ts, change in entry.changes.items():
                found.append(self._prewrite_row(key, entry, start_ts, change))
            for at in range(len(entry.versions) - 1, -1, -1):
                version = entry.versions[at]
                if version.commit_ts <= after_ts:
                    break
                old = version.old_value
                if old is None:
                    old = (entry.versions[at - 1].value or b"") if at else b""
                if version.value is not None or old:
                    found.append(
                        Applied(
                            _COMMITTED, key, version.start_ts, version.commit_ts, version.value,
                            old, version.txn_source,
                        )
                    )  # fmt: skip
        return found

    def prewrite(
        self, key: bytes, start_ts: int, change: Change | None = None, primary: bytes = b""
    ) -> bool:
        """Lock `key` for `start_ts`, as its primary if no other is given.

        False if another client has rolled it back, as TiKV then refuses.
        """
        return self.prewrite_all({key: change}, start_ts, primary)

    def prewrite_all(
        self,
        changes: Mapping[bytes, Change | None],
        start_ts: int,
        primary: bytes = b"",
        *,
        follow: bool = False,
    ) -> bool:
        """Lock keys by one command; with `follow` they commit and roll back with the primary."""
        known = [self.write_of(key, start_ts) for key in changes]
        if any(write is not None and write.rollback for write in known):
            return False
        rows = []
        for (key, change), write in zip(changes.items(), known, strict=True):
            if write is not None:
                continue
            entry = self._entry(key)
            entry.locks.setdefault(start_ts, None)
            self._open.setdefault(start_ts, {})[key] = primary or key
            if change is not None and start_ts not in entry.changes:
                entry.changes[start_ts] = change
                rows.append(self._prewrite_row(key, entry, start_ts, change))
        if follow:
            followers = self._followers.setdefault((primary, start_ts), [])
            followers += [key for key in changes if key != primary]
        self._tell(rows)
        return True

    def abandon(self, key: bytes, start_ts: int) -> None:
        """Leave the lock of a dead TiDB's `start_ts`: it lives on for as long as it was given."""
        entry = self._keys.get(key)
        if entry and start_ts in entry.locks:
            entry.locks[start_ts] = (
                self._lock(key, start_ts).ttl_ms - _LOCK_TTL_MS + _SMALL_LOCK_TTL_MS
            )

    def commit(self, key: bytes, start_ts: int, commit_ts: int, short_value: bytes = b"") -> bool:
        """Commit `start_ts`; return False if it was rolled back meanwhile, as TiKV then refuses."""
        known = self.write_of(key, start_ts)
        if known is not None:
            return not known.rollback
        rows = []
        for each in (key, *self._followers.pop((key, start_ts), ())):
            if self.write_of(each, start_ts) is not None:
                continue
            entry = self._entry(each)
            write = Write(start_ts, commit_ts, short_value=short_value if each == key else b"")
            bisect.insort(entry.writes, write, key=lambda w: w.commit_ts)
            self._ended.append((commit_ts, each))
            change = self._unlock(each, entry, start_ts)
            if change is not None:
                version = Version(
                    commit_ts, change.value, start_ts, change.txn_source, change.old_value
                )
                self._add_version(each, entry, version)
                rows.append(
                    Applied(
                        _COMMIT, each, start_ts, commit_ts, change.value, b"", change.txn_source
                    )
                )
        self._tell(rows)
        return True

    def rollback(self, key: bytes, start_ts: int, *, alone: bool = False) -> None:
        """Roll `start_ts` back, unless it is committed or rolled back already.

        With `alone` keys that follow stay locked, as those of a dead TiDB do until a reader
        resolves them.
        """
        rows = []
        followers = () if alone else self._followers.pop((key, start_ts), ())
        for each in (key, *followers):
            if self.write_of(each, start_ts) is not None:
                continue
            entry = self._entry(each)
            bisect.insort(
                entry.writes, Write(start_ts, start_ts, rollback=True), key=lambda w: w.commit_ts
            )
            self._ended.append((start_ts, each))
            self._unlock(each, entry, start_ts)
            rows.append(Applied(_ROLLBACK, each, start_ts))
        self._tell(rows)

    def drop(self, safe_point: int) -> None:
        """Collect garbage: forget transactions that ended through this TSO, and old versions.

        A transaction's fate is forgotten where a key has had no other since, a version if it can't
        be read from the TSO on. (TiKV keeps the newest record of each row; here only primary keys
        and captured rows have any, for as long as a client may ask for them.)
        """
        while self._ended and self._ended[0][0] <= safe_point:
            _, key = self._ended.popleft()
            entry = self._keys.get(key)
            if entry is None:
                continue
            at = bisect.bisect_right(entry.versions, safe_point, key=_commit_ts)
            if at:
                del entry.versions[: at if entry.versions[at - 1].value is None else at - 1]
                if not entry.versions:
                    del self._sorted[bisect.bisect_left(self._sorted, key)]
            is_idle = not entry.versions and not entry.locks
            if is_idle and entry.writes and entry.writes[-1].commit_ts <= safe_point:
                del self._keys[key]

    def release(self, key: bytes, start_ts: int) -> None:
        """Drop the lock without a record: a transaction of which TiKV knows nothing."""
        rows = []
        for each in (key, *self._followers.pop((key, start_ts), ())):
            entry = self._keys.get(each)
            if entry is not None and self._unlock(each, entry, start_ts) is not None:
                rows.append(Applied(_ROLLBACK, each, start_ts))
        self._tell(rows)

    def writes(self, key: bytes) -> list[Write]:
        """Return the records of the write column, newest first."""
        entry = self._keys.get(key)
        return entry.writes[::-1] if entry else []

    def lock(self, key: bytes) -> Lock | None:
        """Return the oldest lock on `key`."""
        entry = self._keys.get(key)
        return self._lock(key, next(iter(entry.locks))) if entry and entry.locks else None

    def write_of(self, key: bytes, start_ts: int) -> Write | None:
        """Return the record of transaction `start_ts` on its primary key."""
        entry = self._keys.get(key)
        if entry is None:
            return None
        # Records are in order of commit_ts, which is never smaller than start_ts.
        at = bisect.bisect_left(entry.writes, start_ts, key=lambda w: w.commit_ts)
        return next((w for w in entry.writes[at:] if w.start_ts == start_ts), None)

    def check_txn_status(
        self, key: bytes, lock_ts: int, current_ts: int, *, rollback_if_not_exist: bool
    ) -> TxnStatus:
        """Answer as KvCheckTxnStatus: roll back an expired lock, and, if asked, a missing one.

        Raises TxnNotFound when there is nothing and nothing was to be written.
        """
        entry = self._keys.get(key)
        if entry and lock_ts in entry.locks:
            lock = self._lock(key, lock_ts)
            if physical_ms(lock_ts) + lock.ttl_ms >= physical_ms(current_ts):
                return TxnStatus(lock=lock)
            self.rollback(key, lock_ts, alone=True)
            return TxnStatus(action=1)
        known = self.write_of(key, lock_ts)
        if known is not None:
            return TxnStatus() if known.rollback else TxnStatus(commit_ts=known.commit_ts)
        if not rollback_if_not_exist:
            raise TxnNotFound
        self.rollback(key, lock_ts, alone=True)
        return TxnStatus(action=2)

    def resolve_lock(self, key: bytes, start_ts: int, commit_ts: int) -> None:
        """End the lock of `start_ts` on `key`, if there is one.

        It is committed, or rolled back when commit_ts is 0.
        """
        entry = self._keys.get(key)
        if entry and start_ts in entry.locks:
            if commit_ts:
                self.commit(key, start_ts, commit_ts)
            else:
                self.rollback(key, start_ts)

    def locked_keys(self, start_ts: int) -> list[bytes]:
        """Return keys that transaction `start_ts` has locked."""
        return list(self._open.get(start_ts, ()))

    def locks(self, start: bytes, end: bytes, max_ts: int) -> list[Lock]:
        """Return the locks in [start, end) of transactions that began through `max_ts`, by key."""
        keys = sorted(
            (key, start_ts)
            for start_ts, found in self._open.items()
            if start_ts <= max_ts
            for key in found
            if _within(key, start, end)
        )
        return [self._lock(key, start_ts) for key, start_ts in keys]

    def _lock(self, key: bytes, start_ts: int) -> Lock:
        primary = self._open.get(start_ts, {}).get(key, key)
        fixed = self._keys[key].locks.get(start_ts)
        if fixed is not None:
            return Lock(key, start_ts, fixed, primary)
        age = max(0, physical_ms(self._now()) - physical_ms(start_ts))
        return Lock(key, start_ts, age + _LOCK_TTL_MS, primary)

    def _unlock(self, key: bytes, entry: _Key, start_ts: int) -> Change | None:
        """Remove the lock; return the row that it writes."""
        entry.locks.pop(start_ts, None)
        held = self._open.get(start_ts)
        if held is not None:
            held.pop(key, None)
            if not held:
                del self._open[start_ts]
        return entry.changes.pop(start_ts, None)

    def _prewrite_row(self, key: bytes, entry: _Key, start_ts: int, change: Change) -> Applied:
        old = self._old_value(entry, change, start_ts)
        return Applied(_PREWRITE, key, start_ts, 0, change.value, old, change.txn_source)

    def _old_value(self, entry: _Key, change: Change, ts: int) -> bytes:
        known = change.old_value
        return (_value_at(entry, ts) or b"") if known is None else known

    def _add_version(self, key: bytes, entry: _Key, version: Version) -> None:
        if not entry.versions:
            bisect.insort(self._sorted, key)
        bisect.insort(entry.versions, version, key=_commit_ts)

    def _tell(self, rows: list[Applied]) -> None:
        if rows:
            for listener in self._listeners:
                listener(rows)

    def _entry(self, key: bytes) -> _Key:
        return self._keys.setdefault(key, _Key())


def _value_at(entry: _Key, ts: int) -> bytes | None:
    at = bisect.bisect_right(entry.versions, ts, key=_commit_ts)
    return entry.versions[at - 1].value if at else None


def _commit_ts(version: Version) -> int:
    return version.commit_ts


def _within(key: bytes, start: bytes, end: bytes) -> bool:
    return start <= key and (not end or key < end)

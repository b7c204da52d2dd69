"""Locks of dead transactions are resolved as the protocol says, and those of live ones are left."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.tidb import pb, tso
from sluice.tidb.pd import PDClient, Region
from sluice.tidb.tikv import TiKVClient, TiKVError
from sluice.tidb.tikv import lock_resolver as locks
from sluice.tidb.tikv.lock_resolver import LockResolver
from tests.tidb.wire_cluster import Cluster, Range

NOW_MS = 1_700_000_000_000
NOW = tso.compose(NOW_MS, 0)
BORDERS = (b"", b"k3", b"k6", b"")


@dataclass
class Tikv:
    """TiKV's side of the protocol, in three regions.

    `ended`: by start_ts and key, the commit_ts or 0.
    """

    locks: dict[tuple[int, bytes], pb.tikv.LockInfo] = field(default_factory=dict)
    ended: dict[tuple[int, bytes], int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def lock(self, start_ts: int, key: bytes, primary: bytes, ttl_ms: int, **more: Any) -> None:
        self.locks[start_ts, key] = pb.tikv.LockInfo(
            key=key, primary_lock=primary, lock_version=start_ts, lock_ttl=ttl_ms, **more
        )

    def end(self, start_ts: int, key: bytes, commit_ts: int) -> None:
        assert self.ended.get((start_ts, key), commit_ts) == commit_ts, (
            "another outcome than before"
        )
        self.locks.pop((start_ts, key), None)
        self.ended[start_ts, key] = commit_ts

    def call(self, method: str, key: bytes, request: Any, response_type: Any) -> tuple[Region, Any]:
        self.calls.append(method)
        at = bisect.bisect_right(BORDERS[1:-1], key)
        start, end = BORDERS[at], BORDERS[at + 1]
        region = Region(at + 1, start, end, 1, 1, (), None)
        found = getattr(self, method)(request, lambda k: start <= k and (not end or k < end))
        return region, found

    def KvScanLock(self, request: Any, holds: Any) -> Any:
        found = [
            lock
            for (start_ts, key), lock in sorted(self.locks.items(), key=lambda item: item[0][1])
            if holds(key) and request.start_key <= key
            and (not request.end_key or key < request.end_key) and start_ts <= request.max_version
        ]  # fmt: skip
        return pb.tikv.ScanLockResponse(locks=found[: request.limit])

    def KvCheckTxnStatus(self, request: Any, holds: Any) -> Any:
        place = request.lock_ts, request.primary_key
        assert holds(request.primary_key) and request.current_ts <= NOW
        lock = self.locks.get(place)
        if lock is not None:
            if tso.physical_ms(request.lock_ts) + lock.lock_ttl >= NOW_MS or (
                lock.use_async_commit and not request.force_sync_commit
            ):
                return pb.tikv.CheckTxnStatusResponse(lock_ttl=lock.lock_ttl, lock_info=lock)
            self.end(*place, 0)
            return pb.tikv.CheckTxnStatusResponse(action=pb.tikv.TTLExpireRollback)
        if place in self.ended:
            return pb.tikv.CheckTxnStatusResponse(commit_version=self.ended[place])
        if request.rollback_if_not_exist:
            self.end(*place, 0)
            return pb.tikv.CheckTxnStatusResponse(action=pb.tikv.LockNotExistRollback)
        return pb.tikv.CheckTxnStatusResponse(
            error=pb.tikv.KeyError(txn_not_found=pb.tikv.TxnNotFound())
        )

    def KvCheckSecondaryLocks(self, request: Any, holds: Any) -> Any:
        (key,) = request.keys
        assert holds(key)
        place = request.start_version, key
        if place in self.locks:
            return pb.tikv.CheckSecondaryLocksResponse(locks=[self.locks[place]])
        if place not in self.ended:
            self.end(*place, 0)
        return pb.tikv.CheckSecondaryLocksResponse(commit_ts=self.ended[place])

    def KvResolveLock(self, request: Any, holds: Any) -> Any:
        for start_ts, key in [*self.locks]:
            named = key in request.keys if request.keys else holds(key)
            if start_ts == request.start_version and named:
                assert holds(key)
                self.end(start_ts, key, request.commit_version)
        return pb.tikv.ResolveLockResponse()


class Pd:
    def tso(self) -> int:
        return NOW


KEYS = [f"k{n}".encode() for n in range(10)]


@st.composite
def transactions(draw: st.DrawFn) -> tuple[Tikv, dict[tuple[int, bytes], int | None]]:
    """TiKV after some TiDBs have died, and what each lock must become.

    That is committed, rolled back (0) or left (None).
    """
    tikv, expected = Tikv(), {}
    keys = draw(st.permutations(KEYS))
    for number in range(draw(st.integers(1, 3))):
        own = [keys.pop() for _ in range(draw(st.integers(1, 3)))]
        primary, *secondaries = own
        age_ms = draw(st.integers(1, 60_000))
        start_ts = tso.compose(NOW_MS - age_ms, number)
        kind = draw(
            st.sampled_from(
                ["live", "dead", "committed", "rolled back", "lost", "async", "async incomplete"]
            )
        )
        kind = draw(st.sampled_from([kind, "async committed"])) if secondaries else kind
        ttl_ms = age_ms + 1000 if kind == "live" else age_ms - 1
        is_async = kind.startswith("async")
        more = {"use_async_commit": True, "secondaries": secondaries} if is_async else {}
        floors = [start_ts + draw(st.integers(1, 100)) for _ in own]
        for n, key in enumerate(own):
            floor = {"min_commit_ts": floors[n]} if is_async else {}
            tikv.lock(
                start_ts,
                key,
                primary,
                ttl_ms,
                **(more if n == 0 else {"use_async_commit": is_async}),
                **floor,
            )
        outcome: int | None = {"live": None, "committed": start_ts + 7}.get(kind, 0)
        if kind in ("committed", "rolled back"):
            tikv.end(start_ts, primary, outcome or 0)
        elif kind == "lost":
            del tikv.locks[start_ts, primary]
        elif kind == "async":
            outcome = max(floors)
        elif kind == "async committed":
            outcome = max(floors)
            tikv.end(start_ts, draw(st.sampled_from(secondaries)), outcome)
        elif kind == "async incomplete":
            if secondaries:
                del tikv.locks[start_ts, draw(st.sampled_from(secondaries))]
            else:
                outcome = floors[0]
        expected |= {place: outcome for place in tikv.locks if place[0] == start_ts}
    return tikv, expected


@given(transactions(), st.sampled_from([1, 2, 1024]), st.sampled_from([0, 1, 16]))
def test_every_lock_becomes_what_its_transaction_is(
    drawn: tuple[Tikv, dict[tuple[int, bytes], int | None]], per_scan: int, single: int
) -> None:
    tikv, expected = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "_LOCKS_PER_SCAN", per_scan)
        patch.setattr(locks, "_MAX_SINGLE_RESOLVES", single)
        report = LockResolver(tikv, Pd()).resolve(b"", b"", NOW + (1 << 40))  # type: ignore[arg-type]
    for place, outcome in expected.items():
        assert tikv.ended.get(place) == outcome and (place in tikv.locks) == (outcome is None)
    left = {(each.start_ts, each.key) for each in report.live}
    assert left == {place for place, outcome in expected.items() if outcome is None}


def test_younger_locks_other_ranges_and_locks_without_a_change_are_not_touched() -> None:
    tikv, dead = Tikv(), tso.compose(NOW_MS - 60_000, 0)
    tikv.lock(dead, b"k1", b"k1", 10)
    tikv.lock(dead + 1, b"k2", b"k2", 10, lock_type=pb.tikv.PessimisticLock)
    tikv.lock(dead + 9, b"k2", b"k2", 10)
    tikv.lock(dead + 2, b"k8", b"k8", 10)
    report = LockResolver(tikv, Pd()).resolve(b"k0", b"k7", dead + 5)  # type: ignore[arg-type]
    assert (report.resolved, report.live) == (1, [])
    assert [*tikv.ended] == [(dead, b"k1")]


def test_a_transaction_is_asked_for_once_however_many_locks_it_has() -> None:
    tikv, dead = Tikv(), tso.compose(NOW_MS - 60_000, 0)
    for key in KEYS:
        tikv.lock(dead, key, b"k0", 10)
    LockResolver(tikv, Pd()).resolve(b"", b"", NOW)  # type: ignore[arg-type]
    assert tikv.calls.count("KvCheckTxnStatus") == 1 and not tikv.locks


def test_an_asynchronous_commit_that_gave_up_being_one_is_rolled_back_by_its_primary() -> None:
    tikv, dead = Tikv(), tso.compose(NOW_MS - 60_000, 0)
    tikv.lock(
        dead, b"k1", b"k1", 10, use_async_commit=True, secondaries=[b"k7"], min_commit_ts=dead + 5
    )
    tikv.lock(dead, b"k7", b"k1", 10)
    LockResolver(tikv, Pd()).resolve(b"", b"", NOW)  # type: ignore[arg-type]
    assert tikv.ended == {(dead, b"k1"): 0, (dead, b"k7"): 0}


def test_an_answer_that_is_an_error_is_raised_with_method_and_key() -> None:
    class Failing(Tikv):
        def KvScanLock(self, request: Any, holds: Any) -> Any:
            return pb.tikv.ScanLockResponse(error=pb.tikv.KeyError(abort="no"))

    with pytest.raises(TiKVError, match="KvScanLock of key 6b31: abort"):
        LockResolver(Failing(), Pd()).resolve(b"k1", b"", NOW)  # type: ignore[arg-type]


def test_locks_are_found_in_all_regions_of_a_real_connection() -> None:
    cluster = Cluster()
    cluster.regions[:] = [Range(2, b"", b"k3", 1), Range(3, b"k3", b"", 2)]
    start_ts = tso.compose(cluster.physical - 60_000, 0)
    for key in (b"k1", b"k5"):
        cluster.locks[key] = pb.tikv.LockInfo(
            primary_lock=b"k1", lock_version=start_ts, key=key, lock_ttl=10
        )
    cluster.statuses[b"k1"] = pb.tikv.CheckTxnStatusResponse(commit_version=start_ts + 3)
    try:
        with PDClient(cluster.urls, timeout_s=30) as pd, TiKVClient(pd, timeout_s=60) as tikv:
            report = LockResolver(tikv, pd).resolve(b"", b"", start_ts)
    finally:
        cluster.stop()
    assert report.resolved == 2 and not cluster.locks
    assert {request.commit_version for request in cluster.resolved} == {start_ts + 3}

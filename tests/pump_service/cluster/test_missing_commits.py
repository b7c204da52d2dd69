"""What became of a transaction: what TiKV is asked, in which order, and what its answers mean."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.pump_service.cluster.missing_commits import OutcomeUnknown, TiKVResolver
from sluice.pump_service.store import Store, StoreOptions, TxnOutcome, TxnOutcomeKind, failpoints
from sluice.pump_service.store.binlog_head import encode_outcome, parse_head, prewrite_key
from sluice.tidb import pb
from sluice.tidb.tikv import Mvcc, MvccLock, MvccWrite, TiKVError, TxnKind, TxnStatus
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    RECORDINGS,
    commit,
    eventually,
    paired,
    prewrite,
    recorded,
    settle,
    window,
    write,
)

FAST = dataclasses.replace(OPTIONS, resolve_after_s=0.05, resolve_retry_s=0.05)
PENDING, ROLLED_BACK = TxnOutcome(TxnOutcomeKind.PENDING), TxnOutcome(TxnOutcomeKind.ROLLED_BACK)
MINUTE = 60_000 << 18


class Cluster:
    """A TiKV and a PD that answer as told, and remember what they were asked."""

    def __init__(
        self, mvcc: Mvcc | TiKVError | None = None, status: TxnStatus | None = None, now: int = BASE
    ) -> None:
        self.mvcc, self.status, self.now = mvcc or Mvcc(None, ()), status, now
        self.asked: list[tuple[object, ...]] = []
        self.safe_point = 0

    def mvcc_get(self, key: bytes) -> Mvcc:
        self.asked.append(("mvcc", key))
        if isinstance(self.mvcc, TiKVError):
            raise self.mvcc
        return self.mvcc

    def check_txn_status(
        self,
        primary: bytes,
        start_ts: int,
        caller_start_ts: int,
        current_ts: int,
        *,
        rollback_if_not_exist: bool,
    ) -> TxnStatus:
        self.asked.append(
            ("check", primary, start_ts, caller_start_ts, current_ts, rollback_if_not_exist)
        )
        assert self.status is not None
        return self.status

    def tso(self) -> int:
        return self.now

    def get_gc_safe_point(self) -> int:
        return self.safe_point

    def resolver(self) -> TiKVResolver:
        return TiKVResolver(self, self, max_txn_time_s=600.0)


@pytest.mark.parametrize(
    ("mvcc", "verdict"),
    [
        (
            Mvcc(None, (MvccWrite(0, BASE, BASE + 9),)),
            TxnOutcome(TxnOutcomeKind.COMMITTED, BASE + 9),
        ),
        (
            Mvcc(None, (MvccWrite(1, BASE, BASE + 9),)),
            TxnOutcome(TxnOutcomeKind.COMMITTED, BASE + 9),
        ),
        (
            Mvcc(None, (MvccWrite(2, BASE, BASE + 9),)),
            TxnOutcome(TxnOutcomeKind.COMMITTED, BASE + 9),
        ),
        (Mvcc(None, (MvccWrite(3, BASE, BASE),)), ROLLED_BACK),
        (Mvcc(None, (MvccWrite(0, BASE - 7, BASE, overlapped_rollback=True),)), ROLLED_BACK),
        (Mvcc(None, (MvccWrite(0, BASE - 7, BASE),)), PENDING),
        (Mvcc(None, (MvccWrite(0, BASE + 1, BASE + 3),)), PENDING),
        (Mvcc(MvccLock(BASE, b"k", 3000), ()), PENDING),
        (Mvcc(None, ()), PENDING),
    ],
)
def test_a_young_transaction_is_judged_by_its_records_alone(
    mvcc: Mvcc, verdict: TxnOutcome
) -> None:
    cluster = Cluster(mvcc, now=BASE + 10 * MINUTE)
    assert cluster.resolver()(BASE, b"k") == verdict
    assert cluster.asked == [("mvcc", b"k")]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (
            TxnStatus(TxnKind.COMMITTED, commit_ts=BASE + 9),
            TxnOutcome(TxnOutcomeKind.COMMITTED, BASE + 9),
        ),
        (TxnStatus(TxnKind.ROLLED_BACK), ROLLED_BACK),
        (TxnStatus(TxnKind.LOCKED, ttl_ms=5), PENDING),
        (TxnStatus(TxnKind.UNDECIDED), PENDING),
        (TxnStatus(TxnKind.NOT_FOUND), PENDING),
    ],
)
def test_after_ten_minutes_an_unknown_one_is_settled_with_its_own_start_ts_and_pds_time(
    status: TxnStatus, verdict: TxnOutcome
) -> None:
    now = BASE + 10 * MINUTE + (1 << 18)
    cluster = Cluster(status=status, now=now)
    assert cluster.resolver()(BASE, b"k") == verdict
    assert cluster.asked == [("mvcc", b"k"), ("check", b"k", BASE, BASE, now, True)]


def test_a_young_transaction_of_a_tidb_that_is_gone_is_settled_at_once() -> None:
    now = BASE + MINUTE
    cluster = Cluster(status=TxnStatus(TxnKind.ROLLED_BACK), now=now)
    gone: list[int] = []
    resolver = TiKVResolver(
        cluster, cluster, max_txn_time_s=600.0, is_gone=lambda start_ts: start_ts in gone
    )
    assert resolver(BASE, b"k") == PENDING
    gone.append(BASE)
    assert resolver(BASE, b"k") == ROLLED_BACK
    assert cluster.asked == [("mvcc", b"k"), ("mvcc", b"k"), ("check", b"k", BASE, BASE, now, True)]
    committed = Cluster(Mvcc(None, (MvccWrite(0, BASE, BASE + 9),)), now=now)
    assert TiKVResolver(committed, committed, max_txn_time_s=600.0, is_gone=lambda _: True)(
        BASE, b"k"
    ) == TxnOutcome(TxnOutcomeKind.COMMITTED, BASE + 9)


@pytest.mark.parametrize(
    "mvcc", [Mvcc(None, ()), Mvcc(None, (MvccWrite(0, BASE + 5, BASE + 9),)), TiKVError("away")]
)
def test_what_tikv_has_dropped_is_not_taken_for_rolled_back(mvcc: Mvcc | TiKVError) -> None:
    cluster = Cluster(mvcc, TxnStatus(TxnKind.ROLLED_BACK), now=BASE + 100 * MINUTE)
    cluster.safe_point = BASE + 1
    with pytest.raises(OutcomeUnknown, match=rf"PUT /verdict/{BASE}/rollback"):
        cluster.resolver()(BASE, b"k")
    assert cluster.asked == [("mvcc", b"k")]
    cluster.safe_point = BASE
    assert cluster.resolver()(BASE, b"k") == ROLLED_BACK


def test_a_lock_before_the_safe_point_is_still_decided_by_tikv() -> None:
    cluster = Cluster(
        Mvcc(MvccLock(BASE, b"k", 3000), ()),
        TxnStatus(TxnKind.ROLLED_BACK),
        now=BASE + 100 * MINUTE,
    )
    cluster.safe_point = BASE + MINUTE
    assert cluster.resolver()(BASE, b"k") == ROLLED_BACK


def test_an_old_one_with_a_record_is_not_touched() -> None:
    cluster = Cluster(Mvcc(None, (MvccWrite(0, BASE, BASE + 9),)), now=BASE + 100 * MINUTE)
    assert cluster.resolver()(BASE, b"k") == TxnOutcome(TxnOutcomeKind.COMMITTED, BASE + 9)
    assert cluster.asked == [("mvcc", b"k")]


def test_no_answer_is_no_verdict() -> None:
    with pytest.raises(TiKVError, match="away"):
        Cluster(TiKVError("away")).resolver()(BASE, b"k")
    old = Cluster(TiKVError("away"), TxnStatus(TxnKind.ROLLED_BACK), now=BASE + 11 * MINUTE)
    assert old.resolver()(BASE, b"k") == ROLLED_BACK
    nonsense = Cluster(
        status=TxnStatus(TxnKind.COMMITTED, commit_ts=BASE - 1), now=BASE + 11 * MINUTE
    )
    with pytest.raises(TiKVError, match="before it began"):
        nonsense.resolver()(BASE, b"k")


# -- in the store


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[Store]]:
    stores: list[Store] = []
    yield stores
    for store in stores:
        store.close()


def test_orphans_are_settled_as_tikv_knows_them_in_commit_order(
    tmp_path: Path, opened: list[Store]
) -> None:
    rows = [
        json.loads(line)
        for line in (RECORDINGS / "orphans" / "tikv-txn-status.jsonl").read_text().splitlines()
    ]
    known = {
        row["primary_key"]: Mvcc(
            None,
            tuple(
                MvccWrite(w.get("type", 0), w["start_ts"], w["commit_ts"])
                for w in row["mvcc"].get("writes", ())
            ),
        )
        for row in rows
    }

    class Recorded(Cluster):
        def mvcc_get(self, key: bytes) -> Mvcc:
            return known.get(key.hex(), Mvcc(None, ()))

    store = Store.open(tmp_path, FAST, Recorded(now=max(r["start_ts"] for r in rows)).resolver())
    opened.append(store)
    records = list(recorded("orphans"))
    for first in range(0, len(records), 10):
        write(store, *records[first : first + 10])
    settle(store)
    eventually(store.all_matched)
    verdicts = [
        commit(r["start_ts"], w["commit_ts"])
        for r in rows
        for w in r["mvcc"]["writes"]
        if w["start_ts"] == r["start_ts"] and w.get("type", 0) != 3
    ]
    assert len(verdicts) == 15
    assert window(store) == paired([*records, *verdicts])
    assert store.stats().resolver_queries >= 20
    row = verdicts[0]
    assert store.lookup(row.commit_ts) == encode_outcome(1, row.start_ts, row.commit_ts)
    message = pb.binlog.Binlog(
        tp=1, start_ts=row.start_ts, commit_ts=row.commit_ts, ddl_job_id=0, ddl_schema_state=0
    )
    assert message.SerializeToString() == store.lookup(row.commit_ts)


def test_a_verdict_survives_a_restart_and_is_not_asked_for_again(
    tmp_path: Path, opened: list[Store]
) -> None:
    store = Store.open(
        tmp_path,
        FAST,
        lambda start, key: (
            ROLLED_BACK if start == BASE else TxnOutcome(TxnOutcomeKind.COMMITTED, BASE + 5)
        ),
    )
    write(store, prewrite(BASE), prewrite(BASE + 1))
    settle(store, BASE + 10)
    assert [row[:2] for row in window(store)] == [(BASE + 5, BASE + 1)]
    store.close()
    asked: list[int] = []

    def later(start: int, key: bytes) -> TxnOutcome:
        asked.append(start)
        return PENDING

    import shutil

    shutil.rmtree(tmp_path / "kv")
    again = Store.open(tmp_path, FAST, later)
    opened.append(again)
    eventually(again.all_matched)
    assert [row[:2] for row in window(again)] == [(BASE + 5, BASE + 1)]
    assert asked == []


def test_a_resolver_that_hangs_or_fails_blocks_neither_writes_nor_what_lies_before(
    tmp_path: Path, opened: list[Store]
) -> None:
    import threading

    release = threading.Event()
    calls: list[int] = []

    def stubborn(start: int, key: bytes) -> TxnOutcome:
        calls.append(start)
        assert key == b"primary"
        if len(calls) < 4:
            raise TiKVError("no answer")
        release.wait(60)
        return ROLLED_BACK

    store = Store.open(tmp_path, FAST, stubborn)
    opened.append(store)
    write(store, prewrite(BASE), commit(BASE, BASE + 1), prewrite(BASE + 5, key=b"primary"))
    eventually(lambda: len(calls) == 4)
    for i in range(10, 200, 10):
        write(store, prewrite(BASE + i), commit(BASE + i, BASE + i + 5), timeout=60)
    assert store.max_commit_ts == BASE + 1
    release.set()
    settle(store, BASE + 300)
    assert len(window(store)) == 20
    assert len(calls) == 4


def test_a_commit_that_arrives_while_it_is_asked_for_counts_once(
    tmp_path: Path, opened: list[Store]
) -> None:
    import threading

    asked, release = threading.Event(), threading.Event()

    def slow(start: int, key: bytes) -> TxnOutcome:
        asked.set()
        release.wait(60)
        return TxnOutcome(TxnOutcomeKind.COMMITTED, BASE + 1)

    store = Store.open(tmp_path, FAST, slow)
    opened.append(store)
    write(store, prewrite(BASE))
    assert asked.wait(60)
    write(store, commit(BASE, BASE + 1))
    settle(store, BASE + 2)
    release.set()
    write(store, prewrite(BASE + 5), commit(BASE + 5, BASE + 6))
    settle(store, BASE + 7)
    assert [row[0] for row in window(store)] == [BASE + 1, BASE + 6]
    assert store.stats().late_commits == 0


def test_a_verdict_that_a_full_disk_refuses_is_asked_for_again(
    tmp_path: Path, opened: list[Store]
) -> None:
    store = Store.open(
        tmp_path, FAST, lambda start, key: TxnOutcome(TxnOutcomeKind.COMMITTED, BASE + 1)
    )
    opened.append(store)
    try:
        failpoints.configure("vlog.write=nospace@2")  # the first write is the Prewrite
        write(store, prewrite(BASE))
        eventually(store.all_matched)
    finally:
        failpoints.configure("")
    assert store.stats().resolver_queries >= 2
    settle(store, BASE + 2)
    assert [row[0] for row in window(store)] == [BASE + 1]


def test_a_commit_before_its_own_start_is_no_verdict(tmp_path: Path, opened: list[Store]) -> None:
    store = Store.open(
        tmp_path, FAST, lambda start, key: TxnOutcome(TxnOutcomeKind.COMMITTED, start)
    )
    opened.append(store)
    write(store, prewrite(BASE))
    eventually(lambda: store.stats().resolver_queries > 2)
    assert store.stats().pending_prewrites == 1


def test_prewrites_wait_a_second_before_anybody_is_asked() -> None:
    options = StoreOptions()
    assert (options.resolve_after_s, options.resolve_retry_s) == (1.0, 1.0)


def test_prewrite_key_and_head_are_read_from_any_encoding() -> None:
    record = prewrite(BASE, b"v" * 300, b"\x00primary\xff")
    assert prewrite_key(record.payload) == b"\x00primary\xff"
    assert parse_head(record.payload) == (0, BASE, 0)
    assert parse_head(b"") == (0, 0, 0)
    for broken in (b"\x08", b"\x10" + b"\xff" * 11, b"\x22\x05ab", b"\x0b"):
        with pytest.raises(ValueError):
            parse_head(broken)

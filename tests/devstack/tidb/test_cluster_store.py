import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.devstack.tidb.mvcc_records import Locked, TxnNotFound
from sluice.devstack.tidb.store import Store
from sluice.tidb.tso import compose
from tests.examples import examples

NOW = compose(1_700_000_000_000)
KEY = b"t\x80primary"


def store():
    return Store(lambda: NOW)


def test_a_read_sees_the_newest_version_at_its_timestamp():
    held = store()
    for ts, value in ((30, b"c"), (10, b"a"), (20, b"b")):
        held.put(KEY, value, ts)
    assert [held.get(KEY, ts) for ts in (9, 10, 19, 20, 99)] == [None, b"a", b"a", b"b", b"c"]


def test_a_lock_stops_newer_reads_only_and_commit_lifts_it():
    held = store()
    held.put(KEY, b"old", 10)
    held.prewrite(KEY, 50)
    assert held.get(KEY, 49) == b"old"
    with pytest.raises(Locked) as caught:
        held.get(KEY, 50)
    assert (caught.value.lock.key, caught.value.lock.start_ts) == (KEY, 50)
    assert held.get(KEY, 50, frozenset({50})) == b"old"
    assert held.commit(KEY, 50, 60)
    assert held.get(KEY, 70) == b"old"


def test_the_fate_of_a_transaction_is_decided_once():
    held = store()
    held.prewrite(KEY, 50)
    held.rollback(KEY, 50)
    assert not held.commit(KEY, 50, 60), "TiKV refuses a commit after a rollback"
    held.prewrite(KEY, 70)
    assert held.commit(KEY, 70, 80)
    held.rollback(KEY, 70)
    assert held.check_txn_status(KEY, 70, NOW, rollback_if_not_exist=True).commit_ts == 80
    assert held.check_txn_status(KEY, 50, NOW, rollback_if_not_exist=True).commit_ts == 0
    assert [(w.start_ts, w.rollback) for w in held.writes(KEY)] == [(70, False), (50, True)]


def test_a_living_writers_lock_never_expires_but_an_abandoned_one_does():
    held = store()
    long_ago = NOW - compose(3_600_000)
    held.prewrite(KEY, long_ago)
    alive = held.check_txn_status(KEY, long_ago, NOW, rollback_if_not_exist=True)
    assert alive.lock is not None
    assert alive.lock.ttl_ms > 3_600_000
    expired = held.check_txn_status(
        KEY, long_ago, NOW + compose(60_000), rollback_if_not_exist=True
    )
    assert (expired.lock, expired.commit_ts, expired.action) == (None, 0, 1)
    assert held.lock(KEY) is None
    assert held.write_of(KEY, long_ago).rollback


def test_nothing_is_written_about_an_unknown_transaction_unless_asked_for():
    held = store()
    with pytest.raises(TxnNotFound):
        held.check_txn_status(KEY, 50, NOW, rollback_if_not_exist=False)
    assert held.writes(KEY) == []
    assert held.check_txn_status(KEY, 50, NOW, rollback_if_not_exist=True).action == 2
    assert not held.commit(KEY, 50, 60)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.dictionaries(st.binary(min_size=1, max_size=4), st.integers(1, 100), max_size=30),
    st.binary(max_size=3),
    st.binary(max_size=3),
    st.booleans(),
)
def test_a_scan_gives_the_keys_of_the_range_in_order(keys, start, end, reverse):
    held = store()
    for key, ts in keys.items():
        held.put(key, b"v", ts)
    expected = sorted((k for k in keys if start <= k and (not end or k < end)), reverse=reverse)
    assert list(held.scan(start, end, reverse=reverse)) == (
        expected if not end or start < end else []
    )


def test_a_lock_that_nobody_keeps_alive_expires_and_a_rolled_back_transaction_is_not_prewritten():
    clock = [compose(1_000_000)]
    held = Store(lambda: clock[0])
    start_ts = compose(999_000)
    assert held.prewrite(KEY, start_ts)
    held.abandon(KEY, start_ts)
    assert held.check_txn_status(KEY, start_ts, clock[0], rollback_if_not_exist=True).lock
    clock[0] = compose(1_010_000)
    assert held.check_txn_status(KEY, start_ts, clock[0], rollback_if_not_exist=True).action == 1
    assert not held.prewrite(KEY, start_ts)
    assert not held.commit(KEY, start_ts, clock[0])

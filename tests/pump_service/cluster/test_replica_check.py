"""Two pumps that capture one cluster are compared, and the first difference is named."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.pump_service.cluster import ReplicaCheck
from sluice.pump_service.store.records import WindowReach
from sluice.tidb.etcd import CAPTURED_LABEL, NodeStatus
from sluice.tidb.window_schema import digest_of
from tests.etl.window_pumps import CLUSTER_ID, WindowPump, batch_of

ROWS = [(10 * n, 10 * n - 1, b"row %d" % n) for n in range(1, 20)]
rows = st.lists(
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**62), st.binary(max_size=40)), max_size=12
)


@given(rows, st.lists(st.integers(0, 12), max_size=4))
def test_the_digest_doesnt_depend_on_where_batches_end(found, cuts):
    edges = [0, *sorted(min(cut, len(found)) for cut in cuts), len(found)]
    whole = batch_of(found)
    pieces = [whole.slice(lo, hi - lo) for lo, hi in itertools.pairwise(edges)]
    assert digest_of(pieces) == digest_of([whole])
    assert digest_of([])[0] == 0


@given(rows, rows)
def test_other_transactions_have_another_digest(one, other):
    assert (digest_of([batch_of(one)]) == digest_of([batch_of(other)])) == (one == other)


class Held:
    """A store in memory, complete through `max_commit_ts`; two transactions fit a range."""

    def __init__(self, found, through, gc_ts=0):
        self.rows, self.max_commit_ts, self.gc_ts = found, through, gc_ts
        self.read = []

    def bounds(self, lo, hi, max_transactions, max_bytes):
        inside = [row[0] for row in self.rows if lo < row[0] <= hi]
        return WindowReach(inside[1] if len(inside) > 2 else hi, len(inside[:2]), 0)

    def read_window(self, lo, hi, *, strict):
        assert strict and self.gc_ts <= lo <= hi <= self.max_commit_ts
        self.read.append((lo, hi))
        return iter([batch_of([row for row in self.rows if lo < row[0] <= hi])])


@pytest.fixture
def other():
    made = WindowPump("a", ROWS)
    made.status = dataclasses.replace(made.status, label={CAPTURED_LABEL: str(CLUSTER_ID)})
    yield made
    made.stop()


def check_of(store, *pumps, node_id="b"):
    own = NodeStatus(node_id, "here", label={CAPTURED_LABEL: str(CLUSTER_ID)})
    return ReplicaCheck(store, own, lambda: [pump.status for pump in pumps], None)


def test_equal_pumps_are_compared_as_far_as_both_are_complete_and_once(other):
    store = Held(ROWS, 150)
    other.stuck_at = 120
    check = check_of(store, other)
    for _ in range(2):
        check.check()
    assert check.differences() == {"a": ""}
    assert [edge for pair in store.read for edge in pair][::2] == [0, 20, 40, 60, 80, 100]
    assert store.read[-1] == (100, 120)
    store.max_commit_ts, other.stuck_at = 190, None
    check.check()
    assert (store.read[6], store.read[-1]) == ((120, 140), (180, 190))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (ROWS[:7] + ROWS[8:], "1 transactions here, 0 there"),
        (sorted([*ROWS, (80, 3, b"more")]), "1 transactions here, 2 there"),
        ([(*row[:2], b"other") if row[0] == 80 else row for row in ROWS], "the contents of 1"),
        ([(80, 3, row[2]) if row[0] == 80 else row for row in ROWS], "the contents of 1"),
    ],
)
def test_a_difference_is_named_with_its_first_commit_ts_and_stays(other, changed, said):
    other.rows = changed
    check = check_of(Held(ROWS, 190), other)
    check.check()
    found = check.differences()["a"]
    assert "pump a differs at commit ts 80," in found and said in found
    other.rows = ROWS
    check.check()
    assert check.differences() == {"a": found}


def test_what_one_of_them_no_longer_has_is_passed_over_and_an_outage_is_not(other):
    store = Held(ROWS, 100)
    other.rows = [row for row in ROWS if row[0] != 50]
    other.purged_through = 60
    check = check_of(store, other)
    check.check()
    assert store.read == []
    other.purged_through = 0
    store.max_commit_ts = 150
    check.check()
    assert store.read[0][0] == 100 and check.differences() == {"a": ""}
    address = other.status.host
    other.status = dataclasses.replace(other.status, host="127.0.0.1:1")
    store.max_commit_ts = 170
    check.check()
    other.status = dataclasses.replace(other.status, host=address)
    before = len(store.read)
    check.check()
    assert store.read[before][0] == 150


def test_only_running_pumps_of_the_cluster_with_a_smaller_id_are_asked(other):
    store = Held(ROWS, 100)
    binlogs = SimpleNamespace(status=dataclasses.replace(other.status, label=None))
    paused = SimpleNamespace(status=dataclasses.replace(other.status, state="paused"))
    for check in (check_of(store, binlogs, paused), check_of(store, other, node_id="a")):
        check.check()
        assert check.differences() == {} and store.read == []

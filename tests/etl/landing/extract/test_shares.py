"""Shares of a transaction are joined into one, whatever pump has which rows."""

from __future__ import annotations

import base64
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.landing.extract.shares import in_order, join_shares
from sluice.etl.landing.extract.worker import LandRanges, _process_ranges
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE, Part, RelayLog, read_parts
from sluice.tidb import PumpReadError
from sluice.tidb.rows import encode_delete, encode_insert
from tests.etl.landing.extract.test_explode import DELETE as DELETED
from tests.etl.landing.extract.test_explode import INSERT as INSERTED
from tests.etl.landing.extract.test_explode import mutation, prewrite
from tests.etl.story import table
from tests.etl.window_pumps import CLUSTER_ID, WindowPump, batch_of

RANK = {DELETE: 0, UPDATE: 1, INSERT: 2}

payloads = st.lists(
    st.tuples(
        st.integers(1, 4),  # commit_ts
        st.integers(1, 3),  # start_ts
        st.lists(st.tuples(st.sampled_from(sorted(RANK)), st.integers(0, 9)), max_size=5),
    ),
    max_size=8,
    unique_by=lambda each: each[:2],
)
"""What a pump has, each payload with the kinds and the numbers of its rows."""


def batches(payload, share, size):
    """A payload's row changes in batches of `size`, of two tables with kinds in order each."""
    commit, start, rows = payload
    ordered = sorted(rows, key=lambda row: (row[1] % 2, RANK[row[0]]))
    rows = [
        (commit, start, position, number % 2, 1, kind, b"%d:%d" % (share, number))
        for position, (kind, number) in enumerate(ordered)
    ]
    for at in range(0, len(rows), size):
        columns = zip(*rows[at : at + size])
        yield pa.record_batch(
            [pa.array(column, field.type) for column, field in zip(columns, PART_SCHEMA)],
            PART_SCHEMA,
        )


def stream(payloads, share, size):
    return (in_order(batches(each, share, size)) for each in sorted(payloads))


@given(st.lists(payloads, min_size=1, max_size=4), st.integers(1, 3))
def test_a_joined_transaction_has_all_rows_deletes_first_and_positions_that_count_on(shares, size):
    found = pa.Table.from_batches(
        join_shares([stream(payloads, number, size) for number, payloads in enumerate(shares)]),
        PART_SCHEMA,
    ).to_pylist()
    wanted = defaultdict(list)
    for number, payloads in enumerate(shares):
        for commit, start, rows in payloads:
            wanted[commit, start] += [(kind, b"%d:%d" % (number, row)) for kind, row in rows]
    joined = defaultdict(list)
    for row in found:
        joined[row["commit_ts"], row["start_ts"]].append(row)
    assert list(joined) == sorted(name for name, rows in wanted.items() if rows)
    for name, rows in joined.items():
        assert [row["position"] for row in rows] == list(range(len(rows)))
        ranks = [RANK[row["kind"]] for row in rows]
        assert ranks == sorted(ranks)
        assert sorted((row["kind"], row["row"]) for row in rows) == sorted(wanted[name])


ITEM = table(11, "item", "id int", "v varchar(10)", primary="id")


def transaction(commit_ts, *, inserts=(), deletes=()):
    rows = [(DELETED, encode_delete(ITEM, {"id": each, "v": "v"})) for each in deletes]
    rows += [(INSERTED, encode_insert(ITEM, {"id": each, "v": "v"})) for each in inserts]
    payload = prewrite(commit_ts - 1, mutation(11, *rows))
    # a capture's Prewrites have a commit_ts
    return commit_ts, commit_ts - 1, payload


@pytest.fixture
def pumps():
    """Two shares: a row moves from one to the other at 30."""
    found = [
        WindowPump("a", [transaction(10, inserts=[1]), transaction(30, inserts=[7])]),
        WindowPump("b", [transaction(20, inserts=[2]), transaction(30, deletes=[7])]),
    ]
    for number, pump in enumerate(found, 1):
        pump.share = f"{number}/2"
    yield found
    for pump in found:
        pump.stop()


def task(pumps, windows=(b"", b"")):
    first, second = (
        {
            "n": n,
            "host": pump.status.host,
            "share": pump.share,
            "window": base64.b64encode(window).decode(),
        }
        for n, (pump, window) in enumerate(zip(pumps, windows))
    )
    bounds = {"token": "t", "lo": 0, "hi": 100, "range_lo": 0, "range_hi": 100, "skips": []}
    return [
        bounds | each | {"window": base64.b64decode(each["window"])} for each in (first, second)
    ]


@pytest.mark.parametrize("is_handed", [False, True])
def test_ranges_of_shares_become_one_part_of_whole_transactions(pumps, tmp_path, is_handed):
    relay = RelayLog.open(tmp_path.as_uri())
    windows = [batch_of(pump.rows).serialize().to_pybytes() for pump in pumps]
    tasks = task(pumps, windows if is_handed else (b"", b""))
    answers = _process_ranges(relay, LandRanges(relay.url, CLUSTER_ID), tasks, "t")
    assert [answer["n"] for answer in answers] == [0, 1]
    assert sum(answer["transactions"] for answer in answers) == 3
    (part,) = (Part.from_dict(answer["part"]) for answer in answers if answer["part"])
    assert (part.rows, part.transactions) == (4, 3)
    found = read_parts(relay.storage, [part])
    assert found["commit_ts"].to_pylist() == [10, 20, 30, 30]
    assert found["position"].to_pylist() == [0, 0, 0, 1]
    assert found["kind"].to_pylist() == [INSERT, INSERT, DELETE, INSERT]


def test_a_pump_of_another_share_at_the_address_is_refused(pumps, tmp_path):
    relay = RelayLog.open(tmp_path.as_uri())
    tasks = task(pumps)
    pumps[1].share = "2/3"
    with pytest.raises(PumpReadError, match="share 2/3"):
        _process_ranges(relay, LandRanges(relay.url, CLUSTER_ID), tasks, "t")
    assert not list(tmp_path.rglob("*.arrow"))

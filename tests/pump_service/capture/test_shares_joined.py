"""What the sinks of all shares store is joined to what one sink of all tables stores."""

from __future__ import annotations

import tempfile
from collections import defaultdict

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.landing.extract import LandRanges, RowExtractor
from sluice.etl.landing.extract.worker import _process_ranges
from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.pump_service.capture.owned_changes import OwnedChanges
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE, Part, RelayLog, read_parts
from sluice.tidb.binlog_kinds import PREWRITE
from sluice.tidb.table_shares import Share
from tests.etl.window_pumps import CLUSTER_ID, batch_of
from tests.pump_service.capture.test_binlog_writer import PLAIN, change, tracker, transaction
from tests.pump_service.storekit import MemoryStore

RANK = {DELETE: 0, UPDATE: 1, INSERT: 2}
BASE, END = 1 << 58, 1 << 60
"""Timestamps as large as real ones: their size shows that a Prewrite was captured."""

changes = st.lists(
    st.tuples(
        st.sampled_from([61, 62, PLAIN]),
        st.integers(0, 8),
        st.sampled_from([(None, 1), (1, 2), (2, None)]),
    ),
    unique_by=lambda each: each[:2],
    min_size=1,
    max_size=12,
)
histories = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3), changes),
    min_size=1,
    max_size=6,
    unique_by=lambda each: each[:2],
)
"""Transactions by commit_ts and start_ts, of which several share one."""


def stored(history, share, limit):
    """What a pump of a share sends of a history, in parts of about `limit` bytes."""
    store = MemoryStore()
    writer = BinlogWriter(store, tracker(), limit, is_shared=not share.is_whole)  # type: ignore[arg-type]
    writer.advance(OwnedChanges(share).of(iter(history)), END)
    records = [each for each in store.records if each.tp == PREWRITE]
    return sorted((each.commit_ts, each.start_ts, each.payload) for each in records)


def rows_of(table):
    found = defaultdict(list)
    for row in table.to_pylist():
        found[row["commit_ts"], row["start_ts"]].append((row["kind"], row["table_id"], row["row"]))
    return found


@given(histories, st.integers(1, 200), st.sampled_from([2, 3]))
def test_shares_of_transactions_in_parts_are_joined_to_whole_ones(drawn, limit, count):
    history = [
        transaction(
            BASE + start * 100_000, BASE + 10**9 + commit, *(change(t, h, *v) for t, h, v in rows)
        )
        for commit, start, rows in sorted(drawn, key=lambda each: each[:2])
    ]
    whole = stored(history, Share(), 1 << 30)
    extractor = RowExtractor("model")
    model = rows_of(pa.Table.from_batches(extractor.extract(batch_of(whole)), PART_SCHEMA))
    tasks = [
        {
            "n": number - 1,
            "token": "t",
            "lo": 0,
            "hi": END,
            "host": f"pump-{number}",
            "range_lo": 0,
            "range_hi": END,
            "skips": [],
            "share": f"{number}/{count}",
            "window": batch_of(stored(history, Share(number, count), limit))
            .serialize()
            .to_pybytes(),
        }
        for number in range(1, count + 1)
    ]
    with tempfile.TemporaryDirectory() as folder:
        relay = RelayLog.open(f"file://{folder}")
        answers = _process_ranges(relay, LandRanges(relay.url, CLUSTER_ID), tasks, "t")
        parts = [Part.from_dict(answer["part"]) for answer in answers if answer["part"]]
        landed = rows_of(read_parts(relay.storage, parts))
    assert list(landed) == list(model) == [(each.commit_ts, each.start_ts) for each in history]
    for name, rows in landed.items():
        assert sorted(rows) == sorted(model[name])
        assert [RANK[row[0]] for row in rows] == sorted(RANK[row[0]] for row in rows)
    assert sum(answer["transactions"] for answer in answers) == len(history)

"""Windows over pumps with captured transactions: each lands once, however few commit timestamps."""

from __future__ import annotations

import dataclasses
import io
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.landing._job import combine
from sluice.etl.landing.extract import source
from sluice.etl.landing.extract.worker import LandRanges, _process_ranges
from sluice.etl.landing.planner import WindowPlanner
from sluice.etl.settings import Window as Limits
from sluice.pump_service.store import Record, Store
from sluice.relay import Part, RelayLog
from sluice.tidb import pb
from sluice.tidb.rows import encode_insert
from sluice.tidb.window_schema import WINDOW_SCHEMA
from tests.etl.landing.extract.test_explode import INSERT, mutation
from tests.etl.story import table
from tests.etl.window_pumps import CLUSTER_ID, WindowPump
from tests.examples import examples
from tests.pump_service.storekit import BASE, OPTIONS, fake, write
from tests.relay.relaykit import window

ITEM = table(11, "item", "id int", primary="id")
END = BASE + 100


class StorePump(WindowPump):
    """A pump that answers from a store."""

    def __init__(self, node_id: str, store: Store) -> None:
        super().__init__(node_id)
        self.store = store

    def Bounds(self, request: Any, context: Any) -> Any:
        mark = min(self.store.max_commit_ts, request.fresh_ts)
        reach = self.store.bounds(request.lo, mark, request.max_transactions, request.max_bytes)
        return pb.window.BoundsResponse(
            max_commit_ts=mark, hi=reach.hi, transactions=reach.transactions, bytes=reach.bytes
        )

    def Read(self, request: Any, context: Any) -> Any:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, WINDOW_SCHEMA) as writer:
            for batch in self.store.read_window(request.lo, request.hi, strict=True):
                for at in range(batch.num_rows):  # one by one: batches end between equal timestamps
                    writer.write_batch(batch.slice(at, 1))
        yield pb.window.ReadResponse(chunk=sink.getvalue())


def captured(commit_ts: int, start_ts: int) -> Record:
    """A transaction of one row, as a capture keeps it."""
    row = encode_insert(ITEM, {"id": start_ts - BASE})
    value = pb.binlog.PrewriteValue(schema_version=5, mutations=[mutation(11, (INSERT, row))])
    message = pb.binlog.Binlog(
        tp=0,
        start_ts=start_ts,
        commit_ts=commit_ts,
        prewrite_key=b"k",
        prewrite_value=value.SerializeToString(),
    )
    return Record(0, start_ts, commit_ts, message.SerializeToString())


@st.composite
def holdings(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """commit_ts, start_ts and the pump that has it: 0, 1, or 2 for both."""
    starts = draw(st.lists(st.integers(1, 50), min_size=1, max_size=25, unique=True))
    return sorted(
        (BASE + s + draw(st.integers(1, 4)), BASE + s, draw(st.integers(0, 2))) for s in starts
    )


@settings(deadline=None, max_examples=examples(20))
@given(found=holdings(), most=st.integers(1, 5), together=st.booleans(), broken_off=st.booleans())
def test_every_transaction_lands_once_and_no_window_ends_between_two_of_one_commit_ts(
    found: list[tuple[int, int, int]], most: int, together: bool, broken_off: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stores = [
            Store.open(Path(folder) / str(i), dataclasses.replace(OPTIONS, is_captured=True))
            for i in range(2)
        ]
        for number, store in enumerate(stores):
            write(
                store, *(captured(c, s) for c, s, where in found if where in (number, 2)), fake(END)
            )
            assert store._sorter.wait_for(END, 60) == END
        pumps = [StorePump(f"pump-{i}", store) for i, store in enumerate(stores)]
        relay = RelayLog.open(f"{Path(folder).as_uri()}/relay")
        limits = Limits(max_transactions=most, max_bytes=1 << 20, idle_interval_ms=200)
        planner = WindowPlanner(
            CLUSTER_ID, limits, lambda: END + 1, lambda: [pump.status for pump in pumps]
        )
        try:
            lo = BASE
            while lo < END:
                plan = planner.plan(lo, empty_now=True)
                assert plan is not None and plan.hi > lo
                for attempt in range(
                    1 + broken_off
                ):  # the first one ends before it has written the record
                    parts = _landed(relay, plan, f"t{attempt}", together=together)
                relay.commit(window(lo, plan.hi, parts))
                lo = plan.hi
            windows = list(relay.windows(BASE))
            changes = relay.read(windows)
            pairs = list(
                zip(changes["commit_ts"].to_pylist(), changes["start_ts"].to_pylist(), strict=True)
            )
            assert pairs == [(commit, start) for commit, start, _ in found]
            for one in windows:
                mine = relay.read([one])["commit_ts"].to_pylist()
                assert mine == [commit for commit, _, _ in found if one.lo < commit <= one.hi]
        finally:
            planner.close()
            # A worker's connections outlive a window, and would meet the next pump at that port.
            for key in list(source._readers):
                source._readers.pop(key).close()
            for pump in pumps:
                pump.stop()
            for store in stores:
                store.close()


def _landed(relay: RelayLog, plan: Any, token: str, *, together: bool) -> list[Part]:
    tasks = [
        {
            "n": n, "token": f"{token}.{plan.lo}", "lo": plan.lo, "hi": plan.hi, "host": each.host,
            "range_lo": each.lo, "range_hi": each.hi, "skips": [], "is_small": together,
        }
        for n, each in enumerate(plan.ranges)
    ]  # fmt: skip
    job = LandRanges(relay.url, CLUSTER_ID)
    groups = [tasks] if together and tasks else [[task] for task in tasks]
    answers = [a for group in groups for a in _process_ranges(relay, job, group, group[0]["token"])]
    assert combine(answers).is_captured == any(answer["transactions"] for answer in answers)
    return [Part.from_dict(answer["part"]) for answer in answers if answer["part"]]

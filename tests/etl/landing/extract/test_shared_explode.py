"""Captured transactions are exploded by commit and start timestamp, and are never confused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.landing._job import combine
from sluice.etl.landing.extract import BinlogDecodeError, RowExtractor, kernel
from sluice.etl.landing.extract.captured_parts import PartJoiner
from sluice.etl.landing.extract.kernel import plain
from sluice.pump_service.capture.binlog_writer import _as_part
from sluice.relay import PART_SCHEMA, RelayLog
from sluice.tidb import pb
from sluice.tidb.window_schema import WINDOW_SCHEMA
from tests.compiled_kernels import compiled_kernel
from tests.examples import examples

TS = 470_614_549_921_792_019


@pytest.fixture(autouse=True, scope="module", params=["compiled", "plain"])
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """With the compiled kernel, and without."""
    found = plain
    if request.param == "compiled":
        found = compiled_kernel("etl/landing/extract/kernel", tmp_path_factory.mktemp("explode"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "scan", found.scan)
        patch.setattr(kernel, "columns", found.columns)
        yield


def captured(commit_ts: int, start_ts: int, *rows: bytes, job: int = 0) -> tuple[int, int, bytes]:
    """A transaction as a capture keeps it: a Prewrite that has its commit_ts."""
    value = pb.binlog.PrewriteValue(schema_version=5)
    if rows:
        value.mutations.add(table_id=7, inserted_rows=rows, sequence=[0] * len(rows))
    binlog = pb.binlog.Binlog(
        tp=0, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=b"k", ddl_job_id=job
    )
    if job:
        binlog.ddl_query, binlog.ddl_schema_state = b"ALTER TABLE t", 5
    else:
        binlog.prewrite_value = value.SerializeToString()
    return commit_ts, start_ts, binlog.SerializeToString()


def batch(*rows: tuple[int, int, bytes]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, WINDOW_SCHEMA)], schema=WINDOW_SCHEMA
    )


def test_transactions_of_one_commit_ts_come_one_after_the_other_across_batches() -> None:
    rows = [
        captured(TS + 9, TS + 1, b"a", b"b"),
        captured(TS + 9, TS + 3, b"c"),
        captured(TS + 10, TS + 9, b"d"),
    ]
    for size in (1, 2, 3):
        extractor = RowExtractor("pump")
        out = [
            each
            for at in range(0, 3, size)
            for each in extractor.extract(batch(*rows[at : at + size]))
        ]
        found = pa.Table.from_batches(out, PART_SCHEMA).select(
            ["commit_ts", "start_ts", "position", "row"]
        )
        assert [tuple(row.values()) for row in found.to_pylist()] == [
            (TS + 9, TS + 1, 0, b"a"), (TS + 9, TS + 1, 1, b"b"),
            (TS + 9, TS + 3, 0, b"c"), (TS + 10, TS + 9, 0, b"d"),
        ]  # fmt: skip
        assert extractor.totals.transactions == 3


@pytest.mark.parametrize("second", [(9, 1), (9, 0), (8, 5)])
def test_another_order_is_the_pumps_fault(second: tuple[int, int]) -> None:
    first, second_row = (
        captured(TS + 9, TS + 1, b"a"),
        captured(TS + second[0], TS + second[1], b"b"),
    )
    for batches in ([batch(first, second_row)], [batch(first), batch(second_row)]):
        extractor = RowExtractor("pump")
        with pytest.raises(BinlogDecodeError, match="order is broken"):
            for each in batches:
                list(extractor.extract(each))


def test_ddl_of_one_commit_ts_is_kept_in_the_order_of_its_jobs() -> None:
    stats = []
    for job, start in ((12, TS + 1), (11, TS + 2), (12, TS + 1)):
        extractor = RowExtractor("pump")
        list(extractor.extract(batch(captured(TS + 9, start, job=job))))
        totals = extractor.totals
        stats.append(
            {
                "ddls": [ddl.to_dict() for ddl in totals.ddls], "skipped": {}, "worker_ms": {},
                "tables": {}, "part": None, "transactions": 1,
            }
        )  # fmt: skip
    assert [ddl.job_id for ddl in combine(stats).ddls] == [11, 12]


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.lists(st.integers(1, 3), min_size=1, max_size=4)),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 6),
)
def test_parts_of_a_large_transaction_become_one_with_positions_that_count_on(
    transactions: list[tuple[int, list[int]]], batch_rows: int
) -> None:
    """Each may share the commit_ts of the one before, and has parts with these row counts."""
    stored, expected, commit_ts = [], [], TS
    for number, (is_later, parts) in enumerate(transactions):
        commit_ts += is_later
        start_ts, position = TS - 1000 + 100 * number, 0
        for part, count in enumerate(parts):
            rows = [b"%d.%d.%d" % (number, part, n) for n in range(count)]
            if len(parts) == 1:
                stored.append(captured(commit_ts, start_ts, *rows))
            else:
                part_ts = start_ts - 50 + part
                _, _, payload = captured(commit_ts, part_ts, *rows)
                stored.append((commit_ts, part_ts, _as_part(payload, part_ts, commit_ts, start_ts)))
            for row in rows:
                expected.append((commit_ts, start_ts, position, row))
                position += 1
    extractor, joiner, out = RowExtractor("pump"), PartJoiner(), []
    for at in range(0, len(stored), batch_rows):
        own = batch(*stored[at : at + batch_rows])
        joiner.find(own)
        out += [joiner.join(each) for each in extractor.extract(own)]
    found = pa.Table.from_batches(out, PART_SCHEMA)
    names = ["commit_ts", "start_ts", "position", "row"]
    assert [tuple(row.values()) for row in found.select(names).to_pylist()] == expected
    assert len(stored) - joiner.surplus == len(transactions)
    with tempfile.TemporaryDirectory() as folder:
        part = RelayLog.open(Path(folder).as_uri()).write_part(TS - 1, commit_ts, "t", 0, out)
    assert part is not None and part.transactions == len(transactions)

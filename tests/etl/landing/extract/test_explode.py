"""Transactions become row changes in the order in which TiDB made them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.landing.extract import BinlogDecodeError, RowExtractor, kernel
from sluice.etl.landing.extract.kernel import plain
from sluice.relay import PART_SCHEMA
from sluice.tidb import pb
from sluice.tidb.schema import MAX_USER_TABLE_ID
from sluice.tidb.window_schema import WINDOW_SCHEMA
from tests.compiled_kernels import compiled_kernel
from tests.etl.relay_from_recording import RECORDINGS, committed

INSERT, UPDATE, DELETE = 0, 1, 4


@pytest.fixture(autouse=True, scope="module", params=["compiled", "plain"])
def way(request, tmp_path_factory):
    """With the compiled kernel, and without."""
    found = plain
    if request.param == "compiled":
        found = compiled_kernel("etl/landing/extract/kernel", tmp_path_factory.mktemp("explode"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "scan", found.scan)
        patch.setattr(kernel, "columns", found.columns)
        yield


def window_batch(rows):
    columns = list(zip(*rows)) or [(), (), ()]
    return pa.record_batch(
        [pa.array(list(column), field.type) for column, field in zip(columns, WINDOW_SCHEMA)],
        schema=WINDOW_SCHEMA,
    )


def explode(rows, batch_rows=1000, pump="pump-1"):
    exploder = RowExtractor(pump)
    out = []
    for at in range(0, len(rows), batch_rows):
        out += exploder.extract(window_batch(rows[at : at + batch_rows]))
    return pa.Table.from_batches(out, PART_SCHEMA), exploder.totals


def mutation(table_id, *changes):
    """A TableMutation from (kind, row) pairs, as TiDB builds it."""
    made = pb.binlog.TableMutation(table_id=table_id)
    lists = {INSERT: made.inserted_rows, UPDATE: made.updated_rows, DELETE: made.deleted_rows}
    for kind, row in changes:
        lists[kind].append(row)
        made.sequence.append(kind)
    return made


def prewrite(start_ts, *mutations, schema_version=5, **more):
    value = pb.binlog.PrewriteValue(schema_version=schema_version, mutations=mutations)
    return pb.binlog.Binlog(
        tp=0, start_ts=start_ts, commit_ts=0, prewrite_value=value.SerializeToString(), **more
    ).SerializeToString()


@pytest.mark.quick_cases("types", "ddl")
@pytest.mark.parametrize("name", ["shop", "types", "ddl"])
@pytest.mark.parametrize("batch_rows", [97, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_recording_gives_all_its_changes_in_commit_order(name, batch_rows):
    rows = committed(RECORDINGS / name)
    table, totals = explode(rows, batch_rows)
    expected, ddls, fakes = [], [], 0
    for commit_ts, start_ts, payload in rows:
        binlog = pb.binlog.Binlog.FromString(payload)
        if binlog.ddl_job_id and binlog.ddl_query.lower().startswith(b"select setval"):
            fakes += 1
        elif binlog.ddl_job_id:
            ddls.append(
                (commit_ts, binlog.ddl_job_id, binlog.ddl_schema_state, binlog.ddl_query.decode())
            )
        value = pb.binlog.PrewriteValue.FromString(binlog.prewrite_value)
        position = 0
        for made in value.mutations:
            cursors = {
                0: list(made.inserted_rows),
                1: list(made.updated_rows),
                4: list(made.deleted_rows),
            }
            for kind in made.sequence:
                kind_out = {0: 0, 1: 1, 4: 2}[kind]
                row = cursors[kind].pop(0)
                expected.append(
                    (
                        commit_ts,
                        start_ts,
                        position,
                        made.table_id,
                        value.schema_version,
                        kind_out,
                        row,
                    )
                )
                position += 1
    assert list(zip(*(column.to_pylist() for column in table.columns))) == expected
    assert [(d.commit_ts, d.job_id, d.schema_state, d.query) for d in totals.ddls] == ddls
    assert (totals.transactions, totals.changes, totals.fake_ddls) == (
        len(rows),
        len(expected),
        fakes,
    )
    assert sum(t.rows for t in totals.by_table.tables().values()) == len(expected)
    for table_id, span in totals.by_table.tables().items():
        commits = [change[0] for change in expected if change[3] == table_id]
        assert (span.rows, span.first_commit_ts, span.last_commit_ts) == (
            len(commits),
            commits[0],
            commits[-1],
        )


changes = st.lists(
    st.tuples(st.sampled_from([INSERT, UPDATE, DELETE]), st.binary(max_size=8)), max_size=12
)


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(1, 5), changes), max_size=4), max_size=6))
def test_changes_of_a_table_come_out_in_the_order_of_its_sequence(transactions):
    rows = [
        (10 * i + 5, 10 * i + 1, prewrite(10 * i + 1, *(mutation(t, *c) for t, c in made)))
        for i, made in enumerate(transactions)
    ]
    table, _ = explode(rows, 2)
    expected = [
        (10 * i + 5, table_id, {INSERT: 0, UPDATE: 1, DELETE: 2}[kind], row)
        for i, made in enumerate(transactions)
        for table_id, changed in made
        for kind, row in changed
    ]
    assert (
        list(zip(*(table[name].to_pylist() for name in ("commit_ts", "table_id", "kind", "row"))))
        == expected
    )
    positions = {}
    for commit_ts, position in zip(table["commit_ts"].to_pylist(), table["position"].to_pylist()):
        assert position == positions.get(commit_ts, -1) + 1
        positions[commit_ts] = position


def test_packed_sequences_are_read_too():
    value = pb.binlog.PrewriteValue(
        schema_version=1, mutations=[mutation(3, (UPDATE, b"u"), (INSERT, b"i"))]
    ).SerializeToString()
    unpacked, packed = b"\x38\x01\x38\x00", b"\x3a\x02\x01\x00"
    assert value.endswith(unpacked)
    payload = pb.binlog.Binlog(
        tp=0, start_ts=1, prewrite_value=value[:-4] + packed
    ).SerializeToString()
    table, _ = explode([(2, 1, payload)])
    assert table["row"].to_pylist() == [b"u", b"i"]


def test_changes_of_internal_tables_are_left_out_and_counted():
    rows = [
        (
            2,
            1,
            prewrite(
                1,
                mutation(MAX_USER_TABLE_ID + 1, (INSERT, b"x")),
                mutation(MAX_USER_TABLE_ID, (INSERT, b"y")),
            ),
        )
    ]
    table, totals = explode(rows)
    assert table["row"].to_pylist() == [b"y"] and table["position"].to_pylist() == [0]
    assert totals.internal_changes == 1


def test_setval_is_no_ddl():
    rows = [
        (2, 1, prewrite(1, ddl_query=b"Select SetVal(`s`, 100)", ddl_job_id=77, ddl_schema_state=5))
    ]
    _, totals = explode(rows)
    assert totals.ddls == [] and totals.fake_ddls == 1 and totals.transactions == 1


def test_a_ddl_without_its_schema_state_is_one_like_any_other():
    """As TiDB up to 2.1.18 and 3.0.6 sends it; there DROP COLUMN has no extra binlog either."""
    _, totals = explode([(2, 1, prewrite(1, ddl_query=b"drop table t", ddl_job_id=77))])
    assert [(d.job_id, d.schema_state, d.query) for d in totals.ddls] == [(77, 0, "drop table t")]


GARBLED = [
    (b"\xff\xff\xff", "is no Prewrite binlog"),
    (
        pb.binlog.Binlog(tp=0, start_ts=1, prewrite_value=b"\x12\x05ab").SerializeToString(),
        "is no Prewrite binlog",
    ),
    (pb.binlog.Binlog(tp=1, start_ts=1, commit_ts=2).SerializeToString(), "a record of type 1"),
    (prewrite(9), "with start_ts 9"),
    (
        pb.binlog.Binlog(tp=0, start_ts=1, commit_ts=0).SerializeToString(),
        "neither changes nor a whole DDL record",
    ),
    (prewrite(1, ddl_query=b"", ddl_job_id=4), "neither changes nor a whole DDL record"),
    (
        prewrite(1, pb.binlog.TableMutation(table_id=3, inserted_rows=[b"a"], sequence=[])),
        "table id 3: 1 inserted.*sequence of 0 known entries",
    ),
    (
        prewrite(1, pb.binlog.TableMutation(table_id=3, inserted_rows=[b"a"], sequence=[1])),
        "table id 3: 1 inserted, 0 updated.*has 0 inserted, 1 updated, 0 deleted",
    ),
    (
        prewrite(
            1,
            pb.binlog.TableMutation(
                table_id=3, inserted_rows=[b"a"], deleted_rows=[b"b"], sequence=[0, 0]
            ),
        ),
        "table id 3: 1 inserted, 0 updated, 1 deleted rows.*has 2 inserted",
    ),
    (
        prewrite(
            1,
            pb.binlog.TableMutation(
                table_id=3, inserted_rows=[b"a"], deleted_rows=[b"b"], sequence=[0, 4, 4]
            ),
        ),
        "table id 3",
    ),
    (
        prewrite(1, pb.binlog.TableMutation(table_id=3, sequence=[3], deleted_pks=[b"a"])),
        "deletions by key",
    ),
    (
        prewrite(1, pb.binlog.TableMutation(table_id=3, deleted_ids=[4], sequence=[])),
        "deletions by key",
    ),
    (
        prewrite(1, pb.binlog.TableMutation(table_id=3, sequence=[3], inserted_rows=[b"a"])),
        "table id 3: 1 inserted.*has 0 inserted",
    ),
    (
        pb.binlog.Binlog(
            tp=0, start_ts=1, prewrite_value=b"\x12\x09\x08\x03\x12\x01a\x3a\x02\x00\x80"
        ).SerializeToString(),
        "table id 3.*1 inserted.*sequence of 2 known entries",
    ),
    (
        pb.binlog.Binlog(
            tp=0, start_ts=1, prewrite_value=b"\x12\x07\x08\x03\x12\x01a\x38\x09"
        ).SerializeToString(),
        "table id 3.*0 known entries",
    ),
]


@pytest.mark.parametrize(("payload", "what"), GARBLED, ids=[what for _, what in GARBLED])
def test_a_bad_payload_is_an_error_that_names_pump_transaction_and_fault(payload, what):
    good = (1, 0, prewrite(0, mutation(3, (INSERT, b"a"))))
    with pytest.raises(
        BinlogDecodeError, match=rf"pump pump-1, transaction with commit_ts 2, start_ts 1: .*{what}"
    ):
        explode([good, (2, 1, payload)])


def test_a_payload_cut_anywhere_never_passes_for_a_whole_one():
    rows = committed(RECORDINGS / "ddl")
    dml = next(row for row in rows if explode([row])[0].num_rows > 1)
    ddl = next(row for row in rows if explode([row])[1].ddls)
    for commit_ts, start_ts, payload in (dml, ddl):
        check_cuts(commit_ts, start_ts, payload)


def check_cuts(commit_ts, start_ts, payload):
    whole, whole_totals = explode([(commit_ts, start_ts, payload)])
    assert whole.num_rows or whole_totals.ddls
    for length in range(1, len(payload)):
        try:
            cut, totals = explode([(commit_ts, start_ts, payload[:length])])
        except BinlogDecodeError as error:
            assert re.search(rf"commit_ts {commit_ts}, start_ts {start_ts}", str(error))
        else:
            # Only fields are missing that mean nothing for this kind, or that old TiDBs don't send.
            assert cut.equals(whole)
            assert [(d.job_id, d.query) for d in totals.ddls] == [
                (d.job_id, d.query) for d in whole_totals.ddls
            ]


def test_commits_that_go_back_are_refused():
    first = (5, 1, prewrite(1))
    for commit_ts, start_ts in ((4, 2), (5, 1)):
        with pytest.raises(BinlogDecodeError, match=f"commit_ts {commit_ts}.*after commit_ts 5"):
            explode([first, (commit_ts, start_ts, prewrite(start_ts))], batch_rows=1)


def test_a_large_transaction_comes_out_in_batches_of_bounded_size_and_in_order(monkeypatch):
    monkeypatch.setattr("sluice.etl.landing.extract.row_extractor._MAX_BATCH_BYTES", 1000)
    kinds = [INSERT, DELETE, UPDATE, INSERT, UPDATE]
    first = [(kinds[i % 5], b"%d" % i * 30) for i in range(700)]
    second = [(UPDATE, b"s%d" % i) for i in range(300)]
    internal = mutation(MAX_USER_TABLE_ID + 1, *[(INSERT, b"z" * 500)] * 9)
    rows = [
        (2, 1, prewrite(1, mutation(3, *first), internal, mutation(4, *second))),
        (4, 3, prewrite(3, mutation(4, (INSERT, b"x" * 3000)))),
    ]
    batches = list(RowExtractor().extract(window_batch(rows)))
    sizes = [sum(map(len, batch["row"].to_pylist())) for batch in batches]
    assert len(batches) > 50 and max(sizes[:-1]) <= 1000
    table = pa.Table.from_batches(batches)
    assert table["row"].to_pylist() == [row for _, row in (*first, *second)] + [b"x" * 3000]
    assert table["position"].to_pylist() == [*range(1000), 0]
    assert table["kind"].to_pylist() == [
        {INSERT: 0, UPDATE: 1, DELETE: 2}[kind] for kind, _ in (*first, *second)
    ] + [0]


MEMORY = """
import os, sys
import pyarrow as pa
from sluice.etl.landing.extract import RowExtractor
from sluice.relay import RelayLog
from tests.etl.landing.extract.test_explode import INSERT, mutation, prewrite, window_batch
from sluice.tidb import pb

def kib(name):
    status = open("/proc/self/status")
    return next(int(line.split()[1]) for line in status if line.startswith(name + ":"))

def land(payload):
    relay = RelayLog.open(sys.argv[1])
    batches = RowExtractor().extract(window_batch([(2, 1, payload)]))
    return relay.write_part(0, 9, f"t{len(payload)}", 0, batches)

land(prewrite(1, mutation(3, (INSERT, b"x"))))
row = os.urandom(300)
rows = [row] * 100_000
order = [0, 1] * 100_000
payload = prewrite(1, pb.binlog.TableMutation(
    table_id=3, inserted_rows=rows, updated_rows=rows, sequence=order))
del rows, order
open("/proc/self/clear_refs", "w").write("5")
before = kib("VmRSS")
part = land(payload)
assert part.rows == 200_000
print(len(payload) // 1024, kib("VmHWM") - before)
"""


@pytest.mark.slow
def test_a_large_transaction_is_landed_in_its_payload_and_little_more(tmp_path):
    path = str(Path(__file__).parents[4])
    used = limit = payload = 0
    for attempt in range(
        3
        # what writes the part runs beside what explodes: on a busy machine more is under way at
        # once
    ):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, (tmp_path / str(attempt)).as_uri()],
            env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        payload, used = map(int, done.stdout.split())
        # `window_batch` copies the payload into Arrow's memory, as reading it from a pump does.
        limit = payload + 200_000 * 130 // 1024 + 50 * 1024
        if used < limit:
            break
    assert used < limit < 2.3 * payload

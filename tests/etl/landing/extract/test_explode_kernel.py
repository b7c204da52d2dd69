"""The compiled kernel finds what the scan over whole arrays finds, or leaves the batch to it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.landing.extract import BinlogDecodeError, RowExtractor, kernel
from sluice.etl.landing.extract.kernel import plain
from sluice.tidb import pb
from sluice.tidb.schema import MAX_USER_TABLE_ID
from tests.compiled_kernels import compiled_kernel
from tests.etl.landing.extract.test_explode import (
    DELETE,
    INSERT,
    UPDATE,
    mutation,
    prewrite,
    window_batch,
)
from tests.etl.landing.extract.test_wire_scan import odd_transactions
from tests.examples import examples


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return compiled_kernel("etl/landing/extract/kernel", tmp_path_factory.mktemp("explode"))


def exploded(way, rows):
    """The changes, and all that is counted; or the error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "scan", way.scan)
        patch.setattr(kernel, "columns", way.columns)
        exploder = RowExtractor("pump-1")
        try:
            changes = [batch.to_pylist() for batch in exploder.extract(window_batch(rows))]
        except BinlogDecodeError as error:
            return str(error)
    totals = exploder.totals
    return (
        changes,
        totals.transactions,
        totals.changes,
        totals.internal_changes,
        totals.by_table.tables(),
    )


def is_found(compiled, rows):
    edges = [0]
    for row in rows:
        edges.append(edges[-1] + len(row[2]))
    commits, starts = (struct.pack(f"{len(rows)}q", *(row[i] for row in rows)) for i in (0, 1))
    data = b"".join(row[2] for row in rows)
    return (
        compiled.scan(
            data, struct.pack(f"{len(edges)}q", *edges), commits, starts, MAX_USER_TABLE_ID
        )
        is not None
    )


@settings(max_examples=examples(100), deadline=None)
@given(rows=odd_transactions())
def test_it_finds_what_the_scan_finds_however_transactions_are_encoded(compiled, rows):
    assert is_found(compiled, rows)
    assert exploded(compiled, rows) == exploded(plain, rows)


def damage(payload, how, at, value):
    at %= len(payload)
    match how:
        case "byte":
            return payload[:at] + bytes([value]) + payload[at + 1 :]
        case "cut":
            return payload[:at]
        case "twice":
            return payload[:at] + payload[max(0, at - value) :]
        case "length":
            return payload[:at] + b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + payload[at + 1 :]
        case _:
            return payload[:at] + b"\x80" * (value % 12) + payload[at:]


harm = st.tuples(
    st.sampled_from(["byte", "cut", "twice", "length", "varint"]),
    st.integers(0, 10_000),
    st.integers(0, 255),
)


@settings(max_examples=examples(200), deadline=None)
@given(
    rows=odd_transactions(), harms=st.lists(harm, min_size=1, max_size=3), victim=st.integers(0, 5)
)
def test_damaged_bytes_are_left_to_the_scan_or_mean_the_same(compiled, rows, harms, victim):
    commit_ts, start_ts, payload = rows[victim % len(rows)]
    for each in harms:
        payload = damage(payload, *each) or b"\x08"
    rows[victim % len(rows)] = commit_ts, start_ts, payload
    is_found(compiled, rows)  # where nothing lies behind the payloads
    assert exploded(compiled, rows) == exploded(plain, rows)


@settings(max_examples=examples(200), deadline=None)
@given(payloads=st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_bytes_that_are_anything_are_left_to_the_scan_or_mean_the_same(compiled, payloads):
    rows = [(i + 2, 1, payload) for i, payload in enumerate(payloads)]
    assert exploded(compiled, rows) == exploded(plain, rows)


def test_changes_of_many_tables_are_counted_for_each(compiled):
    kinds = (INSERT, UPDATE, DELETE)
    rows = [
        (
            10 * i + 5,
            10 * i + 1,
            prewrite(
                10 * i + 1,
                *(
                    mutation(1 + (7 * i + j) % 500, *[(kinds[i % 3], b"row")] * (1 + j))
                    for j in range(5)
                ),
                mutation(MAX_USER_TABLE_ID + 1 + i, (INSERT, b"internal")),
                schema_version=5 + i % 3,
            ),
        )
        for i in range(400)
    ]
    assert is_found(compiled, rows)
    found = exploded(compiled, rows)
    assert found == exploded(plain, rows)
    assert found[3] == 400 and len(found[4]) == 500


@pytest.mark.parametrize(
    "payload",
    [
        prewrite(1, ddl_query=b"drop table t", ddl_job_id=77),
        pb.binlog.Binlog(tp=0, start_ts=1).SerializeToString(),
        prewrite(1, pb.binlog.TableMutation(table_id=3, sequence=[3], deleted_pks=[b"a"])),
        prewrite(2, mutation(3, (INSERT, b"a"))),
    ],
    ids=["DDL", "nothing", "obsolete", "another's"],
)
def test_what_isnt_row_changes_alone_is_left_to_the_scan(compiled, payload):
    assert not is_found(compiled, [(2, 1, payload)])


def test_arguments_that_dont_fit_are_refused(compiled):
    payload = prewrite(1, mutation(3, (INSERT, b"abc"), (UPDATE, b"de")))
    two = struct.pack("2q", 0, len(payload))
    one = struct.pack("q", 1)
    found = compiled.scan(payload, two, one, one, MAX_USER_TABLE_ID)
    mutations, changes, tables, internal, size = found
    assert (len(changes), internal, size) == (32, 0, 5) and struct.unpack("6q", tables) == (
        3,
        2,
        1,
        1,
        5,
        5,
    )
    assert compiled.columns(payload, one, one, mutations, changes, 0, 2)[7] == b"abcde"
    assert compiled.columns(payload, one, one, mutations, changes, 1, 1)[6:] == (bytes(8), b"")
    for edges in [(0, len(payload) + 1), (-1, 4), (4, 2), (2**62, 2**62)]:
        assert (
            compiled.scan(payload, struct.pack("2q", *edges), one, one, MAX_USER_TABLE_ID) is None
        )
    for bad in [(payload, two, one, one + one), (payload, one, one, one), (payload, two, one, b"")]:
        with pytest.raises(ValueError, match="commit_ts and a start_ts"):
            compiled.scan(*bad, MAX_USER_TABLE_ID)
    wrong = [
        (payload[:9], one, one, mutations, changes, 0, 2),
        (payload, b"", one, mutations, changes, 0, 2),
        (payload, one, b"", mutations, changes, 0, 2),
        (payload, one, one, b"", changes, 0, 2),
        (payload, one, one, mutations, changes[:16], 0, 2),
        (payload, one, one, mutations, changes, -1, 2),
        (payload, one, one, mutations, changes, 2, 1),
        (payload, one, one, mutations, struct.pack("4q", -5, 4, 0, 4), 0, 2),
        (payload, one, one, mutations, struct.pack("4q", 0, -4, 0, 4), 0, 2),
        (payload, one, one, mutations, struct.pack("4q", 2**62, 4, 0, 2**62), 0, 2),
        (payload, one, one, struct.pack("5q", 0, 3, 5, 2**62, 0), changes, 0, 2),
        (payload, one, one, struct.pack("5q", 2**40, 3, 5, 2, 0), changes, 0, 2),
    ]
    for arguments in wrong:
        with pytest.raises(ValueError, match="changes of other payloads"):
            compiled.columns(*arguments)


def test_without_a_compiler_nothing_is_found():
    assert plain.scan(b"", b"", b"", b"", 0) is None
    with pytest.raises(RuntimeError):
        plain.columns(b"", b"", b"", b"", b"", 0, 0)

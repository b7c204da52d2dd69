"""Reading several parts as one: in order, and every transaction once."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relaykit import batch, window

import sluice.relay.part
from sluice.relay import (
    PART_SCHEMA,
    CopiesDifferError,
    RelayCorruptError,
    RelayLog,
    iter_parts,
    merge,
    read_parts,
)

transactions = st.dictionaries(st.integers(1, 60), st.integers(1, 4), max_size=20)
copies = st.dictionaries(st.integers(1, 8), st.tuples(st.integers(1, 3), st.sampled_from(b"xy")))


def table_of(part):
    """A table of a part's transactions: commit_ts to how many rows, and a byte that they hold."""
    batches = [
        batch([(commit, n) for n in range(part[commit][0])], row=bytes([part[commit][1]]))
        for commit in sorted(part)
    ]
    return pa.Table.from_batches(batches, PART_SCHEMA)


@settings(deadline=None)
@given(st.lists(transactions, max_size=5))
def test_the_merge_of_parts_is_sorted_and_has_each_transaction_once(parts):
    counts = {}
    for part in parts:
        for commit, count in part.items():
            part[commit] = counts.setdefault(commit, count)
    merged = merge([table_of({ts: (n, 120) for ts, n in part.items()}) for part in parts])
    assert merged["row"].to_pylist() == [
        b"x %d/%d" % (commit, n) for commit in sorted(counts) for n in range(counts[commit])
    ]
    assert merged.schema.equals(PART_SCHEMA)


@settings(deadline=None)
@given(st.lists(copies, max_size=4), st.sets(st.integers(1, 8)))
def test_copies_of_a_transaction_that_differ_stop_the_merge_unless_it_is_decided(parts, decided):
    first, differing = {}, []
    for i, part in enumerate(parts):
        for commit, rows in part.items():
            owner, known = first.setdefault(commit, (i, rows))
            if rows != known and commit not in decided:
                differing.append((commit, commit - 1, (owner, i)))
    tables = [table_of(part) for part in parts]
    if differing:
        with pytest.raises(CopiesDifferError) as raised:
            merge(tables, decided)
        found = raised.value
        assert (found.commit_ts, found.start_ts, found.owners) in differing
        return
    assert merge(tables, decided)["row"].to_pylist() == [
        b"%c %d/%d" % (rows[1], commit, n)
        for commit, (_, rows) in sorted(first.items())
        for n in range(rows[0])
    ]


def test_parts_with_different_rows_of_a_transaction_are_named_by_whoever_reads_them(tmp_path):
    log = RelayLog.open(tmp_path.as_uri())
    first = log.write_part(0, 10, "a", 0, [batch([(1, 0), (4, 0), (9, 0)])])
    second = log.write_part(0, 10, "a", 1, [batch([(2, 0), (4, 0)], row=b"again")])
    with pytest.raises(RelayCorruptError, match="rows of transaction 3, commit_ts 4") as raised:
        read_parts(tmp_path.as_uri(), [first, second])
    assert first.path in str(raised.value) and second.path in str(raised.value)


def test_an_executor_reads_parts_with_the_url_and_json_alone(tmp_path):
    log = RelayLog.open(tmp_path.as_uri())
    first = log.write_part(0, 10, "a", 0, [batch([(1, 0), (4, 0), (9, 0)])])
    second = log.write_part(0, 10, "a", 1, [batch([(2, 0), (4, 0)]), batch([(8, 0)])])
    log.commit(window(0, 10, [first, second]))
    third = log.write_part(10, 20, "a", 2, [batch([(11, 0)])])
    described = [part.to_dict() for part in (first, second, third)]
    table = read_parts(tmp_path.as_uri(), described)
    assert table["commit_ts"].to_pylist() == [1, 2, 4, 8, 9, 11]
    assert table["row"].to_pylist()[2] == b"row 4/0"
    assert read_parts(tmp_path.as_uri(), []).num_rows == 0


def test_a_part_that_shares_no_time_with_another_is_read_in_the_batches_it_was_written_in(tmp_path):
    log = RelayLog.open(tmp_path.as_uri())
    large = log.write_part(
        0,
        30,
        "a",
        0,
        [batch([(20, n) for n in range(first, first + 4)]) for first in range(0, 12, 4)],
    )
    sides = [log.write_part(0, 30, "a", n, [batch([(n, 0), (9, 0)])]) for n in (1, 2)]
    batches = list(iter_parts(tmp_path.as_uri(), [large, *sides]))
    assert [one["commit_ts"].to_pylist() for one in batches] == [
        [1, 2, 9],
        [20] * 4,
        [20] * 4,
        [20] * 4,
    ]
    reading = iter_parts(tmp_path.as_uri(), [large, sides[0].to_dict()])
    assert next(reading)["commit_ts"].to_pylist() == [1, 9]
    assert next(reading)["position"].to_pylist() == [0, 1, 2, 3]
    reading.close()


@pytest.mark.parametrize("in_memory_through", [0, 10, 2**20])
def test_a_part_is_checked_whether_it_is_read_at_once_or_piece_by_piece(
    tmp_path, monkeypatch, in_memory_through
):
    log = RelayLog.open(tmp_path.as_uri())
    part = log.write_part(0, 10, "a", 0, [batch([(1, 0), (4, 0)]), batch([(9, 0)])])
    monkeypatch.setattr(sluice.relay.part, "_READ_BYTES", in_memory_through or part.bytes - 1)
    assert read_parts(tmp_path.as_uri(), [part])["commit_ts"].to_pylist() == [1, 4, 9]
    file = tmp_path / part.path
    whole = file.read_bytes()
    turned = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
    for damaged in (whole[:-1], whole + b"\0", turned, b""):
        file.write_bytes(damaged)
        with pytest.raises(RelayCorruptError, match="commit_ts 1 to 9"):
            read_parts(tmp_path.as_uri(), [part])

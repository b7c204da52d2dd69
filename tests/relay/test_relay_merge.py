"""Reading several parts as one: in order, and every transaction once."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relaykit import batch, window

import sluice.relay.part
from sluice.relay import PART_SCHEMA, RelayCorruptError, RelayLog, iter_parts, merge, read_parts

transactions = st.dictionaries(st.integers(1, 60), st.integers(1, 4), max_size=20)


@settings(deadline=None)
@given(st.lists(transactions, max_size=5))
def test_the_merge_of_parts_is_sorted_and_takes_each_transaction_from_the_first_part_that_has_it(
    parts,
):
    tables = [
        pa.Table.from_batches(
            [
                batch(
                    [(commit, n) for commit in sorted(part) for n in range(part[commit])],
                    row=b"part %d" % i,
                )
            ],
            PART_SCHEMA,
        )
        for i, part in enumerate(parts)
    ]
    owner = {}
    for i, part in enumerate(parts):
        for commit in part:
            owner.setdefault(commit, i)
    expected = [
        b"part %d %d/%d" % (i, commit, n)
        for commit, i in sorted(owner.items())
        for n in range(parts[i][commit])
    ]
    merged = merge(tables)
    assert merged["row"].to_pylist() == expected
    assert merged.schema.equals(PART_SCHEMA)


def test_an_executor_reads_parts_with_the_url_and_json_alone(tmp_path):
    log = RelayLog.open(tmp_path.as_uri())
    first = log.write_part(0, 10, "a", 0, [batch([(1, 0), (4, 0), (9, 0)])])
    second = log.write_part(0, 10, "a", 1, [batch([(2, 0), (4, 0)], row=b"again"), batch([(8, 0)])])
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

"""Shares of the tables: each table is in exactly one, and ranges of keys never hide one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.tidb.table_shares import MAX_SHARES, Share, missing_shares

ids = st.integers(1, 1 << 40)
counts = st.integers(1, MAX_SHARES)


def key(table_id, rest=b""):
    """A raw key as TiDB makes it: `t`, and the id with its sign turned."""
    return b"t" + (table_id + (1 << 63)).to_bytes(8, "big") + rest


def shares(count):
    return [Share(number, count) for number in range(1, count + 1)]


@given(ids, counts)
def test_each_table_is_in_exactly_one_share(table_id, count):
    owners = [share for share in shares(count) if share.owns(table_id)]
    assert len(owners) == 1
    by_key = [share for share in shares(count) if share.owns_key(key(table_id, b"_r\x80"))]
    assert by_key == owners


@given(counts)
def test_schema_keys_and_tables_of_tidb_are_in_every_share(count):
    for share in shares(count):
        assert share.owns_key(b"mDB:1") and share.owns_key(b"t")
        assert share.owns(0xFFFF_FFFF_FFFF - 1), "mysql.tidb_ddl_job"
        assert share.may_own(b"m", b"n") and share.may_own(b"t", b"u")


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        ("", ""),
        ("1/1", ""),
        ("1/2", "2/2"),
        ("1/2 2/2", ""),
        ("1/1 2/3", ""),
        ("1/2 2/2 1/3", ""),
        ("2/3 2/3", "1/3 3/3"),
        ("2/2 3/3", "1/2 1/3 2/3"),
    ],
)
def test_shares_are_missing_unless_those_of_one_count_are_all_there(present, missing):
    assert " ".join(map(str, missing_shares(map(Share.parse, present.split())))) == missing


rests = st.sampled_from([b"", b"_i", b"_r", b"_r\x80\x01", b"_s"])


@given(ids, st.integers(0, 200), rests, rests, counts, st.integers(0, 250), rests)
def test_a_range_that_a_share_may_not_own_has_none_of_its_keys(
    first, width, start_rest, end_rest, count, within, rest
):
    start, end = key(first, start_rest), key(first + width, end_rest)
    inside = key(first + within, rest)
    if start <= inside < end:
        for share in shares(count):
            assert share.may_own(start, end) or not share.owns(first + within)


def test_the_range_of_one_table_is_of_its_share_alone():
    for table_id in range(100, 200):
        for share in shares(3):
            owns = share.owns(table_id)
            assert share.may_own(key(table_id), key(table_id + 1)) == owns
            assert share.may_own(key(table_id, b"_r1"), key(table_id, b"_r2")) == owns


@pytest.mark.parametrize("step", [1, 2, 3, 4, 8])
def test_shares_are_about_equal_in_whatever_steps_tidb_takes_ids(step):
    for count in (2, 3, 4, 8):
        table_ids = range(100, 100 + 1000 * step, step)
        sizes = [sum(map(share.owns, table_ids)) for share in shares(count)]
        assert max(sizes) < 1.25 * 1000 / count, (count, sizes)


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "1/0", "1/65", "a/3", "1/3/4", "-1/3"])
def test_what_is_no_share_is_refused_by_name(text):
    with pytest.raises(ValueError, match="share"):
        Share.parse(text)
    assert Share.parse("2/3") == Share(2, 3) and str(Share(2, 3)) == "2/3"

"""Whole columns of varints and datums, compared with the codec that does one value at a time."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.changes.write_plans._byte_columns import datums, field, varints
from sluice.etl.changes.write_plans._row_images import in_zone
from sluice.tidb.codec.datum import COMPACT, FLOAT, NIL, UVARINT, VARINT, Datum, encode_datum
from sluice.tidb.codec.varint import encode_uvarint
from sluice.tidb.time_zone import find_zone
from tests.examples import examples

INT64 = st.integers(-(2**63), 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1) | st.sampled_from(
    [2**k - d for k in range(7, 65, 7) for d in (0, 1)]
)
DOUBLE = st.floats(allow_nan=False) | st.sampled_from([-0.0, 0.0])


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(UINT64, max_size=20))
def test_varints_are_protobufs(values: list[int]) -> None:
    assert varints(np.array(values, np.uint64)).to_pylist() == [
        encode_uvarint(value) for value in values
    ]


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(INT64, max_size=10))
def test_negative_numbers_take_ten_bytes_as_in_protobuf(values: list[int]) -> None:
    assert varints(np.array(values, np.int64)).to_pylist() == [
        encode_uvarint(value % 2**64) for value in values
    ]


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.binary(max_size=200), max_size=10))
def test_fields_carry_their_length(values: list[bytes]) -> None:
    expected = [b"before\x22" + encode_uvarint(len(value)) + value for value in values]
    assert field(b"\x22", pa.array(values, pa.large_binary()), b"before").to_pylist() == expected


@pytest.mark.parametrize(
    ("kind", "flag", "values"),
    [
        (pa.int64(), VARINT, INT64), (pa.uint64(), UVARINT, UINT64), (pa.float64(), FLOAT, DOUBLE),
        (pa.float32(), FLOAT, st.floats(width=32, allow_nan=False)),
        (pa.large_binary(), COMPACT, st.binary(max_size=150)),
    ],
    ids=["int", "unsigned", "double", "float", "bytes"],
)  # fmt: skip
def test_datums_are_those_of_the_codec(
    kind: pa.DataType, flag: int, values: st.SearchStrategy[object]
) -> None:
    @settings(deadline=None, max_examples=examples(60))
    @given(st.lists(st.none() | values, max_size=12))
    def check(column: list[object]) -> None:
        expected = [
            encode_datum(Datum(NIL, None) if value is None else Datum(flag, value))
            for value in column
        ]  # type: ignore[arg-type]
        assert datums(pa.array(column, kind)).to_pylist() == expected

    check()


def test_text_datums_may_hold_bytes_that_are_no_text() -> None:
    raw = pa.array([b"caf\xc3\xa9", b"\xff\xfe", b"", None], pa.large_binary())
    text = pa.LargeStringArray.from_buffers(len(raw), *raw.buffers()[1:], raw.buffers()[0], 1, 0)
    assert datums(text).to_pylist() == [
        b"\x02\x0acaf\xc3\xa9",
        b"\x02\x04\xff\xfe",
        b"\x02\x00",
        b"\x00",
    ]


def test_timestamps_are_moved_into_a_zone_and_zero_dates_stay() -> None:
    texts = pa.array(
        [
            "2026-03-29 00:59:59.123456",
            "2026-03-29 01:00:00",
            None,
            "0000-00-00 00:00:00.000",
            "2026-03-29 01:00:00",
        ],
        pa.large_string(),
    )
    assert in_zone(texts, find_zone("Europe/Berlin")).to_pylist() == [
        "2026-03-29 01:59:59.123456",
        "2026-03-29 03:00:00",
        None,
        "0000-00-00 00:00:00.000",
        "2026-03-29 03:00:00",
    ]
    assert in_zone(texts, find_zone("-03:30")).to_pylist()[0] == "2026-03-28 21:29:59.123456"
    assert in_zone(texts, find_zone("UTC")).to_pylist() == texts.to_pylist()
    assert in_zone(texts, datetime.UTC).to_pylist() == texts.to_pylist()

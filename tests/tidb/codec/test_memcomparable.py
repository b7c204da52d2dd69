"""Order-preserving bytes and integers: round trips, order, and refusal of what isn't canonical."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.tidb.codec import (
    CodecError,
    decode_bytes,
    decode_int,
    decode_uint,
    encode_bytes,
    encode_int,
    encode_uint,
)
from sluice.tidb.codec.varint import decode_uvarint, decode_varint, encode_uvarint, encode_varint


@given(st.binary(max_size=40), st.binary(max_size=10))
def test_bytes_come_back_and_the_length_is_as_documented(data: bytes, after: bytes) -> None:
    encoded = encode_bytes(data)
    assert len(encoded) == (len(data) // 8 + 1) * 9
    assert decode_bytes(b"x" + encoded + after, 1) == (data, 1 + len(encoded))


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_encoded_bytes_compare_as_the_bytes_do(a: bytes, b: bytes) -> None:
    assert (encode_bytes(a) < encode_bytes(b)) == (a < b)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_integers_come_back_and_compare_in_order(a: int, b: int) -> None:
    assert decode_int(encode_int(a)) == (a, 8)
    assert (encode_int(a) < encode_int(b)) == (a < b)
    assert decode_varint(encode_varint(a)) == (a, len(encode_varint(a)))


@given(st.integers(0, (1 << 64) - 1))
def test_unsigned_integers_come_back(value: int) -> None:
    assert decode_uint(encode_uint(value)) == (value, 8)
    assert decode_uvarint(encode_uvarint(value)) == (value, len(encode_uvarint(value)))


@given(st.binary(max_size=30))
def test_any_bytes_decode_or_are_refused_and_accepted_ones_are_canonical(data: bytes) -> None:
    try:
        value, end = decode_bytes(data)
    except CodecError:
        return
    assert encode_bytes(value) == data[:end]


@pytest.mark.parametrize("bad", [-1, 1 << 64])
def test_numbers_that_do_not_fit_are_refused(bad: int) -> None:
    with pytest.raises(CodecError):
        encode_uvarint(bad)
    with pytest.raises(CodecError):
        encode_uint(bad)

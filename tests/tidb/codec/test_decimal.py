"""MyDecimal: every precision and scale comes back exactly, bodies order as numbers do, bad bytes
are refused.
"""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.tidb.codec import CodecError
from sluice.tidb.codec.decimal import body_size, decode_decimal, encode_decimal, valid_prefix
from sluice.tidb.codec.vectorized import _DECIMAL_SIZE

shapes = st.integers(1, 65).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, min(p, 30))))


def exact(unscaled: int, fraction: int) -> str:
    with localcontext() as context:
        context.prec = 100
        return f"{Decimal(unscaled).scaleb(-fraction):.{fraction}f}"


@given(shapes, st.data())
def test_every_value_of_every_shape_comes_back(shape: tuple[int, int], data: st.DataObject) -> None:
    precision, fraction = shape
    unscaled = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    text = exact(unscaled, fraction)
    encoded = encode_decimal(text, precision, fraction)
    assert len(encoded) == 2 + body_size(precision, fraction)
    assert decode_decimal(b"??" + encoded + b"rest", 2) == (text, 2 + len(encoded))


@given(shapes, st.data())
def test_bodies_of_one_shape_compare_as_the_numbers_do(
    shape: tuple[int, int], data: st.DataObject
) -> None:
    precision, fraction = shape
    numbers = st.integers(-(10**precision) + 1, 10**precision - 1)
    a, b = data.draw(numbers), data.draw(numbers)
    left, right = (encode_decimal(exact(n, fraction), precision, fraction) for n in (a, b))
    assert (left < right) == (a < b)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x04",
        b"\x00\x00\x80",
        b"\x04\x05\x80",
        b"\x28\x1f" + bytes(20),
        b"\x04\x02\x8a",
        b"\x02\x00\xe4",
    ],
)
def test_impossible_prefixes_short_bodies_and_overfull_groups_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_decimal(data)


@pytest.mark.parametrize(
    ("text", "precision", "fraction"), [("1.234", 5, 2), ("1000", 3, 0), ("NaN", 3, 0)]
)
def test_values_that_do_not_fit_are_refused_not_rounded(
    text: str, precision: int, fraction: int
) -> None:
    with pytest.raises(CodecError):
        encode_decimal(text, precision, fraction)


def test_the_sizes_by_prefix_are_those_of_every_pair_of_bytes():
    for prefix in range(1 << 16):
        precision, fraction = prefix & 0xFF, prefix >> 8
        valid = valid_prefix(precision, fraction)
        assert _DECIMAL_SIZE[prefix] == (2 + body_size(precision, fraction) if valid else -1)

"""Decimals of many rows at once are those of the row-by-row decoder, for every precision."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from sluice.tidb import column_types
from sluice.tidb.rows import decode_inserts, encode_insert
from sluice.tidb.schema import Column, Table

_ROWS = 16


def _value(rng: random.Random, precision: int, fraction: int) -> str | None:
    """Often zero, nine in every digit, or short."""

    def digits(count: int) -> int:
        return rng.choice((0, 10**count - 1, rng.randrange(10 ** rng.randint(0, count))))

    if rng.random() < 0.1:
        return None
    text = rng.choice(("", "-")) + str(digits(precision - fraction))
    return f"{text}.{digits(fraction):0{fraction}}" if fraction else text


@pytest.mark.parametrize("fraction", [0, 1, 2, 4, 6, 7, 10, 30])
def test_decimals_of_every_precision_are_shown_as_the_row_by_row_decoder_shows_them(
    fraction: int,
) -> None:
    rng = random.Random(fraction)
    for precision in range(max(1, fraction), 66):
        column = Column(2, "m", 1, column_types.DECIMAL, flen=precision, decimal=fraction)
        table = Table(1, 1, "d", "t", (Column(1, "id", 0, 8, 3), column), pk_is_handle=True)
        values = [_value(rng, precision, fraction) for _ in range(_ROWS)]
        rows = [encode_insert(table, {"id": n, "m": value}) for n, value in enumerate(values)]
        array = pa.array(rows, pa.large_binary())
        at_once, one_by_one = (
            decode_inserts(table, array, small_batch=limit)["m"] for limit in (0, _ROWS)
        )
        assert at_once.to_pylist() == one_by_one.to_pylist(), precision

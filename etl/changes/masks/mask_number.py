"""Mask whole numbers: other digits, as many, by the permutation that texts of digits get."""

from __future__ import annotations

from collections.abc import Callable

from sluice.etl.changes.masks.mask_text import text_mask
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.schema import Column

INT_BITS = {1: 8, 2: 16, 9: 24, 3: 32, 8: 64}
"""Bits of whole numbers by TiDB's type number."""


def number_range(column: Column) -> tuple[int, int]:
    """Return the least and the largest number that a column of whole numbers holds."""
    bits = INT_BITS[column.tp]
    if column.unsigned:
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def number_mask(key_place: str, column: Column) -> Callable[[int], int]:
    """Return the function that masks a number: another of its sign and of as many digits.

    The permutation is repeated until the number is one without a leading zero that the column
    holds. So it is a permutation of these numbers. Raises MaskKeyError; the function raises
    CodecError for a number that the column can't hold.
    """
    change = text_mask("digits", "", key_place, column)
    least, largest = number_range(column)

    def masked(number: int) -> int:
        if not least <= number <= largest:
            raise CodecError(f"column {column.name!r} has a number beyond its type")
        digits = b"%d" % abs(number)
        first = 10 ** (len(digits) - 1) if len(digits) > 1 else int(number < 0)
        last = largest if number >= 0 else -least
        while True:
            digits = change(digits)
            if first <= (found := int(digits)) <= last:
                return found if number >= 0 else -found

    return masked

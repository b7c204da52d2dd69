"""ENUM, SET and BIT values by TiDB's rules."""

from __future__ import annotations

import re

from sluice.tidb.conversion.context import NotConvertible, ValueOutOfRange
from sluice.tidb.schema import Column

_NUMBER = re.compile(r"(?:0|[1-9]\d*)\Z")
_OTHER_NUMBER = re.compile(r"0[0-9xXoObB_]|\d+_")
_BITS = re.compile(r"[01]+\Z")


def enum_of(name: str, target: Column) -> int:
    """Return the index of an ENUM's element by its name, or by its number in digits.

    Raises ValueOutOfRange with 0, the empty value.
    """
    found = _position(name, target)
    if found is None:
        number = _number(name)
        if number is not None:
            return enum_at(number, target)
        raise ValueOutOfRange(0, "no element of that name")
    return found + 1


def enum_at(number: int, target: Column) -> int:
    """Return the same number, if there is such an element. Raises ValueOutOfRange."""
    if not 1 <= number <= len(target.elems):
        raise ValueOutOfRange(0, "no element of that number")
    return number


def set_of(names: str, target: Column) -> int:
    """Return the bits of a SET by names, or by their number in digits.

    Raises ValueOutOfRange with none.
    """
    if not names:
        return 0
    found = [_position(name, target) for name in names.split(",")]
    if any(position is None for position in found):
        number = _number(names)
        if number is not None:
            return set_at(number, target)
        raise ValueOutOfRange(0, "no element of that name")
    return sum({1 << position for position in found if position is not None})


def set_at(number: int, target: Column) -> int:
    """Return the same bits, if all of them have elements. Raises ValueOutOfRange."""
    if number >> len(target.elems):
        raise ValueOutOfRange(0, "bits without an element")
    return number


def bits_of(number: int, target: Column) -> int:
    """Return a number as the bits of a BIT column. Raises ValueOutOfRange with all of them set."""
    width = max(target.flen, 1)
    if number >> width:
        raise ValueOutOfRange((1 << width) - 1, f"more than {width} bits")
    return number


def _position(name: str, target: Column) -> int | None:
    """Return the element that equals `name` under the column's collation.

    Names that only look alike are refused rather than guessed.
    """
    wanted = _key(name, target.collate)
    for position, element in enumerate(target.elems):
        if _key(element, target.collate) == wanted:
            return position
    if (
        not target.collate.endswith("_bin")
        and target.collate != "binary"
        and any(map(_beyond_ascii, (name, *target.elems)))
    ):
        raise NotConvertible(
            f"whether it equals an element depends on the collation {target.collate}"
        )
    return None


def _key(text: str, collate: str) -> str:
    if collate == "binary" or "nopad" in collate:
        return text
    text = text.rstrip(" ") if "0900" not in collate else text
    return text if collate.endswith("_bin") else text.upper()


def _beyond_ascii(text: str) -> bool:
    return not text.isascii()


def _number(text: str) -> int | None:
    """Parse digits as Go reads them where the base is open."""
    if _NUMBER.match(text):
        number = int(text)
        return number if number < 1 << 64 else None
    if _OTHER_NUMBER.match(text):
        raise NotConvertible("a number in another base")
    return None

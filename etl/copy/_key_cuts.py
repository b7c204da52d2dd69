"""Choose where to cut between two keys, so that about as many rows are on either side.

Nothing is known of the rows between: numbers, bytes and times are cut where even ones would be,
text by the codes of its first characters that differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from sluice.etl.changes.formats.key_ranges import KeyColumn

_DIGITS = 4
"""Characters or bytes that are compared behind those that are the same in both keys."""
_SURROGATES = range(0xD800, 0xE000)

Key = Sequence[bytes | None]
"""A row's key, as TiDB prints it."""


def split_between(key: Sequence[KeyColumn], low: Key, high: Key, parts: int) -> list[list[str]]:
    """Return places that cut what is between two keys into `parts`, fewer where nothing is between.

    A place is the literals of the first column that differs and of those before it. Places are
    made up, and in a collation's order may be anywhere.
    """
    at = next((n for n in range(len(key)) if low[n] != high[n]), None)
    if at is None:
        return []
    try:
        same = [
            column.literal(value or b"") for column, value in zip(key[:at], low[:at], strict=True)
        ]
        values = _values(key[at].kind, low[at] or b"", high[at] or b"", parts)
        return [[*same, key[at].literal(value)] for value in values]
    except (UnicodeDecodeError, ValueError):
        return []


def key_equals(key: Sequence[KeyColumn], row: Key) -> str:
    """Return the condition that takes the row with this key.

    Raises UnicodeDecodeError if no literal can express it.
    """
    parts = [
        f"{column.quoted} = {column.literal(value or b'')}"
        for column, value in zip(key, row, strict=True)
    ]
    return f"({' AND '.join(parts)})"


def _values(kind: str, low: bytes, high: bytes, parts: int) -> list[bytes]:
    """Return the values between as TiDB prints them. Raises ValueError for what can't be cut."""
    if kind in ("int", "year", "decimal"):
        found = _split_numbers(int(Decimal(low.decode())), int(Decimal(high.decode())), parts)
        return [str(value).encode() for value in found]
    if kind in ("date", "datetime", "timestamp"):
        first, last = (datetime.fromisoformat(value.decode()) for value in (low, high))
        moments = [first + (last - first) * n / parts for n in range(1, parts)]
        return [
            moment.isoformat(" ", "seconds")[: 10 if kind == "date" else None].encode()
            for moment in moments
        ]
    if kind == "binary":
        return [bytes(codes) for codes in _between_codes(list(low), list(high), 256, parts)]
    codes = _between_codes(
        [ord(c) for c in low.decode()], [ord(c) for c in high.decode()], 0, parts
    )
    return [
        "".join(chr(c) if c not in _SURROGATES else "\ud7ff" for c in text).encode()
        for text in codes
    ]


def _between_codes(low: list[int], high: list[int], base: int, parts: int) -> list[list[int]]:
    """Return sequences between two: what both begin with, and some more.

    `base` 0: one more than the largest code.
    """
    same = next((n for n, (a, b) in enumerate(zip(low, high)) if a != b), min(len(low), len(high)))
    rest = [codes[same : same + _DIGITS] for codes in (low, high)]
    base = base or max(128, *(code + 1 for codes in rest for code in codes))
    first, last = (_number(codes, base) for codes in rest)
    return [[*low[:same], *_digits(value, base)] for value in _split_numbers(first, last, parts)]


def _split_numbers(low: int, high: int, parts: int) -> list[int]:
    low, high = min(low, high), max(low, high)
    return sorted({low + (high - low) * n // parts for n in range(1, parts)} - {low})


def _number(codes: list[int], base: int) -> int:
    value = 0
    for code in [*codes, *[0] * _DIGITS][:_DIGITS]:
        value = value * base + code
    return value


def _digits(value: int, base: int) -> list[int]:
    found: list[int] = []
    for _ in range(_DIGITS):
        value, digit = divmod(value, base)
        found.append(digit)
    while found and found[0] == 0:
        found.pop(0)
    return found[::-1]

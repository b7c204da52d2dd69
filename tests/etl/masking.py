"""What masks make of values, by Python's `hmac` and slices, and settings with masks.

Digits alone are masked by what verification does: it isn't the code that applies.
"""

from __future__ import annotations

import datetime
import hmac
from typing import Any

from sluice.etl.verify.masked_rows import permuted_digits, permuted_number

VARIABLE = "SLUICE_TEST_MASK_KEY"
KEY = "an example key of 32 characters!"
SECTION = {"key-env": VARIABLE, "relay-log": "clear"}


def hashed(value: str, width: int = 64) -> str:
    found = hmac.new(KEY.encode(), value.encode(), "sha256").hexdigest()
    return found[:width] if value else ""


def days(most: int, person: str | None) -> int:
    """The days of `shift-days`, of one value of the column of persons."""
    message = f"shift-days/{most}/" + ("" if person is None else f"={person}")
    digest = hmac.new(KEY.encode(), message.encode(), "sha256").digest()
    number = int(digest.hex()[:16], 16) % (2 * most)
    return [*range(-most, 0), *range(1, most + 1)][number]


def shifted(date: str, most: int, person: str | None) -> str:
    """A date far from the edges of its type."""
    return str(datetime.date.fromisoformat(date) + datetime.timedelta(days(most, person)))


def masked(value: Any, mask: Any, width: int = 64) -> Any:
    """A value of a column, by its mask as settings have it; `width`: the column's."""
    if value is None:
        return None
    match mask:
        case "null":
            return None
        case {"constant": constant}:
            return constant
        case {"partial": kept}:
            hidden = len(value) - kept
            return "*" * hidden + value[hidden:] if hidden > 0 else "*" * len(value)
        case "hash":
            return hashed(value, width)
        case "digits" if isinstance(value, int):  # of a BIGINT
            return permuted_number(KEY.encode(), value, 64, unsigned=False)
        case "digits":
            return permuted_digits(KEY.encode(), value.encode()).decode()
        case "email" if "@" in value:
            domain = value[value.rindex("@") :]
            whole = hashed(value, 16) + domain
            return whole if len(whole) <= width else hashed(value, width)
        case "email":
            return hashed(value, width)
    raise AssertionError(mask)

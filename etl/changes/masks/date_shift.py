"""Shift dates by a keyed number of days: the same for a column, or for all rows of one value.

A shift has as many days as the type has room for, so no value leaves its range. What is no date of
a calendar (a zero day, the 30th of February) becomes the zero date, as nothing else of it may show.
"""

from __future__ import annotations

import datetime
import functools
import hmac

from sluice.etl.changes.masks.mask_key import mask_key
from sluice.tidb.codec.times import ZERO_DATE

DATED_KINDS = frozenset({"date", "datetime", "timestamp"})
_FIRST_DAY, _LAST_DAY = datetime.date(1, 1, 1).toordinal(), datetime.date.max.toordinal()
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_LAST_TIMESTAMP_DAY = datetime.date(2038, 1, 19).toordinal()
_FIRST_TIME, _LAST_TIME = "00:00:01", "03:14:07.999999"
"""Of a TIMESTAMP's first and last day, in UTC."""
_DATE_CHARS = len(ZERO_DATE)


@functools.lru_cache(maxsize=65_536)
def shift_of(key_place: str, most: int, value: bytes | None) -> int:
    """Return the days, from `-most` to `most` and never 0, of a value; None: of NULL, or no column.

    A number's value is its decimal digits. Raises MaskKeyError.
    """
    message = b"shift-days/%d/" % most + (b"" if value is None else b"=" + value)
    digest = hmac.digest(mask_key(key_place), message, "sha256")
    days = int.from_bytes(digest[:8], "big") % (2 * most) - most
    return days if days < 0 else days + 1


def shifted_text(text: str, days: int, *, is_timestamp: bool) -> str:
    """Return a moment, spelled as decoded values are, some days later or earlier."""
    date, time = text[:_DATE_CHARS], text[_DATE_CHARS:]
    year, month, day = int(date[:4]), int(date[5:7]), int(date[8:])
    try:
        ordinal = datetime.date(year, month, day).toordinal()
    except ValueError:
        return ZERO_DATE + "".join("0" if each.isdecimal() else each for each in time)
    first, last = _FIRST_DAY, _LAST_DAY
    if is_timestamp:
        first, last = _EPOCH_DAY, _LAST_TIMESTAMP_DAY
        first += time[1:] < _FIRST_TIME
        last -= time[1:].ljust(len(_LAST_TIME), " ") > _LAST_TIME
    found = min(max(ordinal + days, first), last)
    return datetime.date.fromordinal(found).isoformat() + time

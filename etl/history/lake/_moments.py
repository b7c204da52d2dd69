"""Convert dates and times from text to numbers, and find those that are no day of the calendar."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["days", "microseconds"]

_DATE = 10
_SECONDS = 19
_MICROSECONDS = 1_000_000

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def days(texts: pa.LargeStringArray) -> tuple[Numbers, Mask]:
    """Return the days since 1970 of texts ``YYYY-MM-DD``, and which texts have any.

    NULL, zero dates, days that no month has and the year 0 have none.
    """
    digits, there = _digits(texts, _DATE)
    found = np.zeros(len(texts), np.int64)
    found[there], fits = _days(digits)
    there[there] = fits
    return found, there


def microseconds(texts: pa.LargeStringArray, fsp: int) -> tuple[Numbers, Mask]:
    """Return the microseconds of texts ``YYYY-MM-DD HH:MM:SS[.f*fsp]``, as `days` does."""
    digits, there = _digits(texts, _SECONDS + (fsp + 1 if fsp else 0))
    day, fits = _days(digits)
    seconds = (
        (day * 24 + _number(digits, 11, 13)) * 3600
        + _number(digits, 14, 16) * 60
        + _number(digits, 17, 19)
    )
    fraction = _number(digits, 20, 20 + fsp) * 10 ** (6 - fsp) if fsp else 0
    found = np.zeros(len(texts), np.int64)
    found[there] = seconds * _MICROSECONDS + fraction
    there[there] = fits
    return found, there


def _digits(texts: pa.LargeStringArray, width: int) -> tuple[npt.NDArray[np.uint8], Mask]:
    """Return the digits of the texts of the right width, a row each, and which texts these are.

    NULL isn't among them.
    """
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, texts.offset * 8)
    there: Mask = np.diff(offsets) == width
    if texts.null_count:
        there &= np.asarray(texts.is_valid())
    if not there.any():
        return np.zeros((0, width), np.uint8), there
    data = np.frombuffer(texts.buffers()[2], np.uint8)
    if there.all():
        grid = data[offsets[0] : offsets[-1]].reshape(-1, width)
    else:
        grid = data[offsets[:-1][there][:, None] + np.arange(width)]
    return grid - np.uint8(ord("0")), there


def _number(digits: npt.NDArray[np.uint8], first: int, end: int) -> Numbers:
    found: Numbers = np.zeros(len(digits), np.int64)
    for place in range(first, end):
        found = found * 10 + digits[:, place]
    return found


def _days(digits: npt.NDArray[np.uint8]) -> tuple[Numbers, Mask]:
    year, month, day = _number(digits, 0, 4), _number(digits, 5, 7), _number(digits, 8, 10)
    months = (year - 1970) * 12 + month - 1
    first, following = (
        at.astype("M8[M]").astype("M8[D]").astype(np.int64) for at in (months, months + 1)
    )
    fits: Mask = (year > 0) & (month > 0) & (month < 13) & (day > 0) & (day <= following - first)
    return first + day - 1, fits

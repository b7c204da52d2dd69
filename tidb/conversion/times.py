"""Dates and times by TiDB's rules: what it reads out of text and numbers, rounding, time zones.

A moment is (year, month, day, hour, minute, second, microsecond); months and days may be 0.
"""

from __future__ import annotations

import datetime
import re

from sluice.tidb.codec.times import pack_time
from sluice.tidb.conversion.context import ConversionSession, NotConvertible, ValueOutOfRange
from sluice.tidb.conversion.numbers import trim

Moment = tuple[int, int, int, int, int, int, int]

ZERO: Moment = (0, 0, 0, 0, 0, 0, 0)
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FIRST, _LAST = (
    datetime.datetime(1970, 1, 1, 0, 0, 1),
    datetime.datetime(2038, 1, 19, 3, 14, 7, 999_999),
)
_PUNCTUATION = frozenset(rb"!\"#$%&'()*+,-./:;<=>?@[\]^_`{|}~")
_DIGITS = frozenset(rb"0123456789")
_SPACE = frozenset(b"T \t\n\v\f\r")
_ZONE = re.compile(rb"(Z|[+-]\d\d(?::?\d\d)?)\Z")
# Widths of the fields of a date without separators, by its length.
_COMPACT = {
    14: (4, 2, 2, 2, 2, 2),
    12: (2,) * 6,
    11: (2, 2, 2, 2, 2, 1),
    10: (2,) * 5,
    9: (2, 2, 2, 2, 1),
    8: (4, 2, 2),
    7: (2, 2, 2, 1),
    6: (2, 2, 2),
    5: (2, 2, 1),
}


def parse(text: str) -> Moment:
    """Parse a value as columns have it, ``YYYY-MM-DD[ HH:MM:SS[.f]]``."""
    packed = pack_time(text)
    micro, rest = packed & 0xFFFFFF, packed >> 24
    year, month = divmod(rest >> 22, 13)
    return year, month, rest >> 17 & 31, rest >> 12 & 31, rest >> 6 & 63, rest & 63, micro


def show(moment: Moment, fsp: int | None) -> str:
    """Return a column's text: with `fsp` fraction digits, or the date alone when it is None."""
    date = f"{moment[0]:04}-{moment[1]:02}-{moment[2]:02}"
    if fsp is None:
        return date
    text = f"{date} {moment[3]:02}:{moment[4]:02}:{moment[5]:02}"
    return f"{text}.{f'{moment[6]:06}'[:fsp]}" if fsp else text


def full_year(year: int) -> int:
    """Complete a year of two digits: 70 to 99 are of the last century."""
    return year + 2000 if 0 <= year <= 69 else year + 1900 if 70 <= year <= 99 else year


def to_zone(moment: Moment, session: ConversionSession) -> Moment:
    """Convert a TIMESTAMP, stored in UTC, to the session's zone.

    Raises NotConvertible when the zone isn't known.
    """
    if moment == ZERO:
        return moment
    local = datetime.datetime(*moment, tzinfo=datetime.UTC).astimezone(session.known_zone())
    return _moment(local)


def to_utc(moment: Moment, session: ConversionSession) -> Moment:
    """Convert a session's wall clock time to the TIMESTAMP it stands for.

    Raises NotConvertible for a time that its clock skips.
    """
    if moment == ZERO:
        return moment
    found = _instant(moment, session)
    if found is None:
        raise NotConvertible(
            f"{show(moment, 6)} doesn't exist in the time zone {session.zone_name}"
        )
    return _moment(found)


def _moment(when: datetime.datetime) -> Moment:
    return when.year, when.month, when.day, when.hour, when.minute, when.second, when.microsecond


def _instant(moment: Moment, session: ConversionSession) -> datetime.datetime | None:
    """Return the instant in UTC, None if there is none.

    Of two with the same wall time, TiDB (Go) takes the one with the offset that holds at that wall
    time taken for UTC, if it holds then.
    """
    zone = session.known_zone()
    try:
        wall = datetime.datetime(*moment, tzinfo=datetime.UTC)
        found = wall
        for _ in range(2):
            offset = found.astimezone(zone).utcoffset() or datetime.timedelta()
            found = wall - offset
            if found.astimezone(zone).utcoffset() == offset:
                break
        return found if found.astimezone(zone).replace(tzinfo=datetime.UTC) == wall else None
    except (ValueError, OverflowError):
        return None


def round_to(moment: Moment, fsp: int, session: ConversionSession) -> Moment:
    """Round half up to `fsp` fraction digits."""
    unit = 10 ** (6 - fsp)
    rounded = (moment[6] + unit // 2) // unit * unit
    if moment == ZERO or rounded == moment[6]:
        return moment
    if rounded < 1_000_000:
        return (*moment[:6], rounded)
    following = _next_second(moment, session)
    if following is not None:
        return following
    seconds = (moment[3] * 60 + moment[4]) * 60 + moment[5] + 1
    if seconds == 86_400:
        raise NotConvertible("rounded to the day after a date that doesn't exist")
    return (*moment[:3], seconds // 3600, seconds // 60 % 60, seconds % 60, 0)


def _next_second(moment: Moment, session: ConversionSession) -> Moment | None:
    """Return the whole second after a wall time, on the session's clock.

    None for a wall time that it doesn't have. Without a zone only where no clock is ever put
    forward or back.
    """
    try:
        if session.zone is None:
            following = datetime.datetime(*moment[:6]) + datetime.timedelta(seconds=1)
            if following.second == 0 and following.minute % 15 == 0:
                session.known_zone()
            return _moment(following)
        instant = _instant((*moment[:6], 0), session)
        return (
            None
            if instant is None
            else _moment((instant + datetime.timedelta(seconds=1)).astimezone(session.zone))
        )
    except ValueError:
        return None
    except OverflowError as error:
        raise NotConvertible("rounded beyond the year 9999") from error


def check(moment: Moment, session: ConversionSession, *, timestamp: bool) -> str:
    """Return why TiDB doesn't take this for a time of the session, "" if it does."""
    if moment == ZERO:
        return ""
    if timestamp:
        instant = _instant(moment, session)
        if instant is None:
            return "no such time in the time zone"
        return (
            "" if _FIRST <= instant.replace(tzinfo=None) <= _LAST else "out of a TIMESTAMP's range"
        )
    year, month, day, hour, minute, second, _ = moment
    if (year, month, day) != (0, 0, 0):
        if (month == 0 or day == 0) and not session.zero_in_date:
            return "a month or a day of zero"
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        most = 31 if not 1 <= month <= 12 else 28 if month == 2 and not leap else _DAYS[month - 1]
        if year > 9999 or month > 12 or day > 31 or (day > most and not session.invalid_dates):
            return "no such day"
    return "" if hour < 24 and minute < 60 and second < 60 else "no such time"


def from_number(number: int, session: ConversionSession, *, timestamp: bool) -> Moment:
    """Read ``[YY]YYMMDD[HHMMSS]`` from a number. Raises ValueOutOfRange with the zero date."""
    if number == 0:
        return ZERO
    original = number
    if number < 10_000_101_000_000:
        number = _completed(number)
    date, clock = divmod(number, 1_000_000)
    moment = (
        date // 10_000,
        date // 100 % 100,
        date % 100,
        clock // 10_000,
        clock // 100 % 100,
        clock % 100,
        0,
    )
    if (
        number < 0
        or moment[0] >= 1 << 14
        or moment[1] > 15
        or moment[2] > 31
        or moment[3] > 31
        or moment[4] > 63
        or moment[5] > 63
    ):
        raise ValueOutOfRange(ZERO, f"{original} is no date")
    # The number alone is looked at as a DATETIME first.
    reason = check(moment, session, timestamp=False) or (
        check(moment, session, timestamp=True) if timestamp else ""
    )
    if reason:
        raise ValueOutOfRange(ZERO, reason)
    return moment


def _completed(number: int) -> int:
    """Add the century and the time of day; -1 for what is no date."""
    if number < 101:
        return -1
    if number <= 691_231:
        return (number + 20_000_000) * 1_000_000
    if number < 700_101:
        return -1
    if number <= 991_231:
        return (number + 19_000_000) * 1_000_000
    if number <= 99_991_231:
        # Up to 9991231 versions of TiDB differ; the years 100 to 999 are in doubt.
        if 991_231 < number < 10_000_101:
            raise NotConvertible("versions of TiDB read years of three digits differently")
        return number * 1_000_000
    if number < 101_000_000:
        return -1
    if number <= 691_231_235_959:
        return number + 20_000_000_000_000
    if number < 700_101_000_000:
        return -1
    return number + 19_000_000_000_000 if number <= 991_231_235_959 else number


def from_text(text: bytes, fsp: int, session: ConversionSession, *, timestamp: bool) -> Moment:
    """Parse text as TiDB does. Raises ValueOutOfRange with the zero date."""
    moment = _read(text, fsp, session)
    reason = check(moment, session, timestamp=timestamp)
    if reason:
        raise ValueOutOfRange(ZERO, reason)
    return moment


def from_decimal(text: str, fsp: int, session: ConversionSession, *, timestamp: bool) -> Moment:
    """Parse a decimal's text as TiDB does: the number before the point, and the fraction.

    Raises ValueOutOfRange.
    """
    if text.startswith("0.0"):
        return ZERO
    whole, _, fraction = text.partition(".")
    try:
        moment = from_number(int(whole), session, timestamp=False)
    except ValueOutOfRange as misfit:
        raise ValueOutOfRange(ZERO, str(misfit)) from misfit
    if whole == "0" or 9 <= len(whole) <= 14:
        moment = _with_fraction(moment, fraction.encode(), fsp, session)
    reason = check(moment, session, timestamp=timestamp)
    if reason:
        raise ValueOutOfRange(ZERO, reason)
    return moment


def _read(text: bytes, fsp: int, session: ConversionSession) -> Moment:
    parts, fraction, zone = _split(text)
    wrong = ValueOutOfRange(ZERO, "no date")
    absorbs = not (len(parts) > 5 or (len(parts) == 1 and len(parts[0]) > 4))
    if fraction and absorbs:
        parts, fraction = [*parts, fraction], b""
    if zone[:1] in (b"+", b"-") and absorbs and len(zone) != 5:
        parts, zone = [*parts, *zone[1:].split(b":")], b""
    if len(parts) in (0, 2) or not all(part.isdigit() for part in parts[:6]):
        raise wrong
    fields = (
        _compact(parts[0], fraction)
        if len(parts) == 1
        else [*(int(part) for part in parts[:6]), 0, 0, 0, 0, 0][:6]
    )
    if fields is None:
        raise wrong
    if len(parts[0]) <= 2 and (any(fields) or fraction):
        fields[0] = full_year(fields[0])
    if (
        fields[0] >= 1 << 14
        or fields[1] > 15
        or fields[2] > 31
        or fields[3] > 31
        or fields[4] > 63
        or fields[5] > 63
    ):
        raise wrong
    moment: Moment = (fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], 0)
    with_seconds = len(parts) >= 6 or (len(parts) == 1 and len(parts[0]) in (11, 12, 14))
    if with_seconds:
        moment = _with_fraction(moment, fraction, fsp, session)
    return _from_zone(moment, zone, session, with_seconds=with_seconds) if zone else moment


def _compact(digits: bytes, fraction: bytes) -> list[int] | None:
    """Return year to second of a date without separators.

    Behind YYYYMMDD or YYMMDD the fraction is a time of day, behind YYMMDDHHMM its seconds.
    """
    widths = _COMPACT.get(len(digits))
    if widths is None:
        return None
    fields, at = [0] * 6, 0
    for number, width in enumerate(widths):
        fields[number] = int(digits[at : at + width])
        at += width
    if widths[0] == 2:
        fields[0] = full_year(fields[0])
    pairs = [int(fraction[i : i + 2]) for i in range(0, min(len(fraction), 6), 2)]
    if len(digits) in (5, 6, 8):
        fields[3 : 3 + len(pairs)] = pairs
    elif len(digits) in (9, 10) and pairs:
        fields[5] = pairs[0]
    return fields


def _from_zone(
    moment: Moment, zone: bytes, session: ConversionSession, *, with_seconds: bool
) -> Moment:
    """Convert a time from the zone in its text to the session's. Raises ValueOutOfRange."""
    minutes = 0 if zone == b"Z" else int(zone[1:3]) * 60 + int(zone[-2:] if len(zone) > 3 else b"0")
    if (
        not with_seconds
        or minutes > 14 * 60
        or (zone[:1] == b"-" and minutes == 0)
        or (len(zone) > 3 and int(zone[-2:]) > 59)
    ):
        raise ValueOutOfRange(ZERO, "a time zone that TiDB doesn't take")
    offset = datetime.timedelta(minutes=-minutes if zone[:1] == b"-" else minutes)
    try:
        there = datetime.datetime(*moment, tzinfo=datetime.timezone(offset))
        return _moment(there.astimezone(session.known_zone()))
    except (ValueError, OverflowError) as error:
        raise ValueOutOfRange(ZERO, "no such time") from error


def _with_fraction(moment: Moment, fraction: bytes, fsp: int, session: ConversionSession) -> Moment:
    if not fraction:
        return moment
    if len(fraction) <= fsp:
        return (*moment[:6], int(fraction.ljust(6, b"0")))
    rounded = (int(fraction[: fsp + 1]) + 5) // 10
    if rounded < 10**fsp:
        return (*moment[:6], rounded * 10 ** (6 - fsp))
    following = _next_second(moment, session)
    if following is None:
        raise ValueOutOfRange(ZERO, "no such time to be rounded")
    return following


def _split(text: bytes) -> tuple[list[bytes], bytes, bytes]:
    """Return (parts between separators, fraction, time zone). No parts: not a date."""
    zone, fraction = b"", b""
    match = _ZONE.search(text)
    if match is not None and match.start() > 0:
        zone = match[1]
        text = _without_punctuation(text[: match.start()])
    point = fraction_at(text)
    if point > 0:
        end = point + 1
        while end < len(text) and text[end] in _DIGITS:
            end += 1
        fraction = text[point + 1 : end]
        text = _without_punctuation(text[:point])
    return _parts(text), fraction, zone


def _without_punctuation(text: bytes) -> bytes:
    while len(text) > 1 and text[-1] in _PUNCTUATION:
        text = text[:-1]
    return text


def fraction_at(text: bytes) -> int:
    """Return the place of the last punctuation, if it is the fraction's point; else -1."""
    for at in range(len(text) - 1, -1, -1):
        if text[at] in _PUNCTUATION:
            return at if text[at] == ord(".") else -1
    return -1


def _parts(text: bytes) -> list[bytes]:
    text = trim(text)
    if not text or text[0] not in _DIGITS:
        return []
    found: list[bytes] = []
    start, at = 0, 1
    while at < len(text) - 1:
        before = len(found)
        if _separates(text[at], before):
            found.append(text[start:at])
            while at + 1 < len(text) and _separates(text[at + 1], before):
                at += 1
            start = at + 1
        elif text[at] not in _DIGITS:
            return []
        at += 1
    return [*found, text[start:]]


def _separates(char: int, parts: int) -> bool:
    return (
        char in _PUNCTUATION
        or (parts == 2 and char in _SPACE)
        or (parts > 4 and char not in _DIGITS)
    )


def at_date(date: datetime.date, micro: int) -> Moment:
    """Return midnight of a date plus `micro` microseconds, which may be negative."""
    return _moment(
        datetime.datetime.combine(date, datetime.time()) + datetime.timedelta(microseconds=micro)
    )

"""Parse moments as people type them: a TSO, a date-time, `20m`, `yesterday 14:00 Europe/Berlin`.

Times without a zone are UTC. What is relative counts from the caller's `now`, the upstream's, else
from this machine's clock. A time that a change of the clock repeats or skips in its zone is
refused, for it names two moments or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, time, timedelta, tzinfo
from difflib import get_close_matches
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from sluice.errors import RequestError
from sluice.tidb import tso

_MAX_TSO = (1 << 63) - 1
_MS_OF_UNIT = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNIT = r"(?:s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?)"
_PART = re.compile(rf"([0-9]{{1,9}})\s*({_UNIT})\s*")
_AGO = re.compile(rf"((?:[0-9]{{1,9}}\s*{_UNIT}\s*)+)(?:\bago)?")
_DAYS_BACK = {"today": 0, "yesterday": 1}
_DAY = re.compile(r"(today|yesterday)(?:[\s,]+(.*))?", re.IGNORECASE)
_NEARLY_AGO = re.compile(r"(?:[0-9]{1,7}\s*[A-Za-z]+\s*)+[A-Za-z]*")
_UNITS = ("seconds", "minutes", "hours", "days", "weeks", "ago")
_NEAR = 0.6
"""Likeness from which on a word is taken for a mistyped other one; difflib's own default."""
_ONE_DIGIT_HOUR = re.compile(r"(?<=[\sT])([0-9]:[0-9]{2})(?![0-9])")
_ZONE_BEHIND = re.compile(r"(.*\S)\s+([A-Za-z][\w+\-/]*)")


class MomentError(RequestError, ValueError):
    """A person typed neither a TSO nor a time."""

    hint = (
        "give the TSO as TiDB prints it, a date-time such as 2026-11-21T09:30:00+00:00, or a time"
        " such as '20m' (ago) or 'yesterday 14:00 Europe/Berlin'"
    )


def is_relative(text: str) -> bool:
    """Return whether the moment depends on the clock: a time ago, `now`, a day by its name."""
    text = text.strip()
    return (
        text.casefold() == "now" or _AGO.fullmatch(text) is not None or _DAY.match(text) is not None
    )


def parse_moment(text: str, now: int | None = None) -> int:
    """Parse a moment (TSO): everything committed until then is in.

    `now` (TSO): what is relative counts from it [this machine's clock]. A time is the last TSO of
    its millisecond. ``before:`` with a commit timestamp (TSO) is the moment right before that
    commit. MomentError for anything else. Digits that would lie before 1980 as a TSO are refused:
    they are seconds or milliseconds, not a TSO.
    """
    text = _ONE_DIGIT_HOUR.sub(r"0\1", text.strip())
    if match := re.fullmatch(r"before[:\s]\s*([0-9]+)", text):
        return _parse_tso(match[1]) - 1
    if re.fullmatch(r"[0-9]+", text):
        return _parse_tso(text)
    now = tso.wall_clock() if now is None else now
    if text.casefold() == "now":
        return tso.last_of_ms(now)
    if match := _AGO.fullmatch(text):
        ms = sum(int(count) * _MS_OF_UNIT[unit[0]] for count, unit in _PART.findall(match[1]))
        return tso.last_of_ms(max(0, now - tso.span(ms)))
    return tso.last_of_ms(_parse_time(text, now))


def parse_zone(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name. Raises MomentError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise MomentError(
            f"unknown time zone {name!r}{_suggestion(name, available_timezones())}",
            hint="name one such as UTC or Europe/Berlin",
        ) from None


def _parse_tso(digits: str) -> int:
    ts = int(digits)
    if ts > _MAX_TSO or 0 < ts < tso.FIRST:
        raise MomentError(f"{digits} is not a TSO of our time")
    return ts


def _parse_time(text: str, now: int) -> int:
    zone: tzinfo | None = None
    said = text
    if _NEARLY_AGO.fullmatch(text):
        _check_words(text)
    if (match := _ZONE_BEHIND.fullmatch(text)) and _is_day_or_time(match[1]):
        said, zone = match[1], parse_zone(match[2])
    try:
        moment = _local_time(said, zone, now)
    except ValueError as error:
        raise MomentError(
            f"invalid moment {text!r}: neither a TSO (digits) nor a time{_mistyped(text)}"
        ) from error
    if moment.tzinfo is not None and zone is not None:
        raise MomentError(f"{text!r} names two time zones")
    return tso.from_datetime(_only_once(moment.replace(tzinfo=zone), text) if zone else moment)


def _check_words(text: str) -> None:
    """Raise MomentError for the first word of a time ago that is no unit."""
    for word in re.findall(r"[A-Za-z]+", text):
        if word != "ago" and not re.fullmatch(_UNIT, word):
            raise MomentError(
                f"invalid moment {text!r}: unknown word {word!r}{_suggestion(word, _UNITS)}"
            )
    raise MomentError(f"invalid moment {text!r}: a number needs a unit, such as 20m or 2 hours")


def _is_day_or_time(text: str) -> bool:
    """Return whether a time zone may stand behind it."""
    return _DAY.fullmatch(text) is not None or text[:1].isdigit()


def _mistyped(text: str) -> str:
    """Return what the first word may have meant."""
    word = re.match(r"[A-Za-z]+", text)
    return _suggestion(word[0], (*_DAYS_BACK, "now")) if word else ""


def _suggestion(word: str, known: Iterable[str]) -> str:
    by_folded = {each.casefold(): each for each in known}
    alike = get_close_matches(word.casefold(), sorted(by_folded), 1, _NEAR)
    return f"; did you mean {by_folded[alike[0]]}?" if alike else ""


def _local_time(text: str, zone: tzinfo | None, now: int) -> datetime:
    """Return a date-time as it is typed; ValueError for what is none."""
    match = _DAY.fullmatch(text)
    if match is None:
        return datetime.fromisoformat(text)
    at = time.fromisoformat(match[2]) if match[2] else time()
    today = tso.to_datetime(now).astimezone(at.tzinfo or zone or UTC).date()
    return datetime.combine(today - timedelta(days=_DAYS_BACK[match[1].casefold()]), at)


def _only_once(moment: datetime, text: str) -> datetime:
    """Return the moment if the clocks of its zone show it exactly once. Raises MomentError."""
    back = moment.astimezone(UTC).astimezone(moment.tzinfo)
    if back.replace(tzinfo=None) != moment.replace(tzinfo=None):
        raise MomentError(f"{text!r}: clocks there skip this time", hint="name the moment in UTC")
    if moment.utcoffset() != moment.replace(fold=1).utcoffset():
        early, late = (
            moment.replace(fold=fold).astimezone(UTC).isoformat(" ", "minutes") for fold in (0, 1)
        )
        raise MomentError(
            f"{text!r}: clocks there show this time twice, at {early} and {late}",
            hint="name the moment in UTC",
        )
    return moment

"""Parse moments as people type them: a TSO, a date-time, `20m`, `yesterday 14:00 Europe/Berlin`.

Times without a zone are UTC. What is relative counts from this machine's clock. A time that a
change of the clock repeats or skips in its zone is refused, for it names two moments or none.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sluice.errors import RequestError
from sluice.tidb import tso

_MAX_TSO = (1 << 63) - 1
_MS_OF_UNIT = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNIT = r"(?:s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?)"
_PART = re.compile(rf"([0-9]{{1,9}})\s*({_UNIT})\s*")
_AGO = re.compile(rf"((?:[0-9]{{1,9}}\s*{_UNIT}\s*)+)(?:\bago)?")
_DAYS_BACK = {"today": 0, "yesterday": 1}
_DAY = re.compile(r"(today|yesterday)(?:[\s,]+(.*))?", re.IGNORECASE)
_ZONE_BEHIND = re.compile(r"(.*\S)\s+([A-Za-z][\w+\-/]*)")


class MomentError(RequestError, ValueError):
    """A person typed neither a TSO nor a time."""

    hint = (
        "give the TSO as TiDB prints it, a date-time such as 2026-11-21T09:30:00+00:00, or a time"
        " such as '20m' (ago) or 'yesterday 14:00 Europe/Berlin'"
    )


def parse_moment(text: str) -> int:
    """Parse a moment (TSO): everything committed until then is in.

    A time is the last TSO of its millisecond. ``before:`` with a commit timestamp (TSO) is the
    moment right before that commit. MomentError for anything else. Digits that would lie before
    1980 as a TSO are refused: they are seconds or milliseconds, not a TSO.
    """
    text = text.strip()
    if match := re.fullmatch(r"before[:\s]\s*([0-9]+)", text):
        return _parse_tso(match[1]) - 1
    if re.fullmatch(r"[0-9]+", text):
        return _parse_tso(text)
    if text.casefold() == "now":
        return tso.last_of_ms(tso.wall_clock())
    if match := _AGO.fullmatch(text):
        ms = sum(int(count) * _MS_OF_UNIT[unit[0]] for count, unit in _PART.findall(match[1]))
        return tso.last_of_ms(max(0, tso.wall_clock() - tso.span(ms)))
    return tso.last_of_ms(_parse_time(text))


def parse_zone(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name. Raises MomentError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise MomentError(
            f"unknown time zone {name!r}", hint="name one such as UTC or Europe/Berlin"
        ) from None


def _parse_tso(digits: str) -> int:
    ts = int(digits)
    if ts > _MAX_TSO or 0 < ts < tso.FIRST:
        raise MomentError(f"{digits} is not a TSO of our time")
    return ts


def _parse_time(text: str) -> int:
    zone: tzinfo | None = None
    said = text
    if (match := _ZONE_BEHIND.fullmatch(text)) and match[2].casefold() not in _DAYS_BACK:
        said, zone = match[1], parse_zone(match[2])
    try:
        moment = _local_time(said, zone)
    except ValueError as error:
        raise MomentError(f"invalid moment {text!r}: neither a TSO (digits) nor a time") from error
    if moment.tzinfo is not None and zone is not None:
        raise MomentError(f"{text!r} names two time zones")
    return tso.from_datetime(_only_once(moment.replace(tzinfo=zone), text) if zone else moment)


def _local_time(text: str, zone: tzinfo | None) -> datetime:
    """Return a date-time as it is typed; ValueError for what is none."""
    match = _DAY.fullmatch(text)
    if match is None:
        return datetime.fromisoformat(text)
    at = time.fromisoformat(match[2]) if match[2] else time()
    today = datetime.now(at.tzinfo or zone or UTC).date()
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

"""The context of a conversion beside the value, and its errors."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from sluice.errors import Signal, SluiceError

STRICT_MODES = 1 << 21 | 1 << 22
"""STRICT_TRANS_TABLES and STRICT_ALL_TABLES in TiDB's SQLMode."""
ALLOW_INVALID_DATES = 1 << 25


class ConversionError(SluiceError, ValueError):
    """A value can't be converted exactly, with the reason. `value` is the old one, as text."""

    hint = "convert the column downstream by hand, then `sluice ddl skip`"

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(f"{shown(value)}: {reason}")
        self.value = value
        self.reason = reason


class ValueOutOfRange(Signal):
    """A value that doesn't fit its new type: an error in strict mode.

    Else `instead` is stored, with a warning.
    """

    def __init__(self, instead: object, reason: str) -> None:
        super().__init__(reason)
        self.replacement = instead


class NotConvertible(Signal):
    """A conversion fails in every mode, so the upstream can't have held the value.

    Or the result of the conversion isn't known.
    """


@dataclass(frozen=True, slots=True)
class ConversionSession:
    """The upstream session that changed the type.

    `sql_mode`: TiDB's bits, None where it wasn't noted. `zone`: its time zone, None if it isn't
    known. `began`, `ended`: when TiDB converted, at the earliest and at the latest.
    """

    sql_mode: int | None = None
    zone: datetime.tzinfo | None = datetime.UTC
    zone_name: str = "UTC"
    began: datetime.datetime | None = None
    ended: datetime.datetime | None = None

    @property
    def strict(self) -> bool:
        """Return whether what doesn't fit was an error.

        Where the mode isn't known it may have been converted.
        """
        return self.sql_mode is not None and bool(self.sql_mode & STRICT_MODES)

    @property
    def invalid_dates(self) -> bool:
        """Return whether days up to 31 were allowed in every month.

        Raises NotConvertible where the mode isn't known.
        """
        if self.sql_mode is None:
            raise NotConvertible(
                "whether ALLOW_INVALID_DATES was set in the upstream session isn't known"
            )
        return bool(self.sql_mode & ALLOW_INVALID_DATES)

    @property
    def zero_in_date(self) -> bool:
        """Return whether a month or a day of zero was kept."""
        return not self.strict or self.invalid_dates

    def known_zone(self) -> datetime.tzinfo:
        """Return the zone. Raises NotConvertible."""
        if self.zone is None:
            raise NotConvertible(
                "values were converted in the time zone"
                f" {self.zone_name or 'of the upstream server'}, whose rules aren't known here"
            )
        return self.zone

    def today(self) -> datetime.date:
        """Return the date on which TiDB converted.

        Raises NotConvertible if it went on over midnight.
        """
        zone = self.known_zone()
        if self.began is None or self.ended is None:
            raise NotConvertible("the date on which the upstream converted isn't known")
        first, last = (moment.astimezone(zone).date() for moment in (self.began, self.ended))
        if first != last:
            raise NotConvertible(
                f"the upstream put its current date in, which was {first} or {last}"
            )
        return first


def shown(value: object) -> str:
    """Return a value for a message, cut off if it is long."""
    text = repr(value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value)
    return text if len(text) <= 200 else f"{text[:200]}..."

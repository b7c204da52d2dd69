"""Find time zones by their names, and the session in which TiDB converted a column's values."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from typing import TYPE_CHECKING

from sluice.tidb import tso
from sluice.tidb.ddl_job import DdlJob

if TYPE_CHECKING:
    from sluice.tidb.conversion import ConversionSession

_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)", re.ASCII)


def find_zone(name: str) -> datetime.tzinfo:
    """Return a time zone by its IANA name or its offset as in `+08:00`, at most 14 hours.

    Raises ValueError.
    """
    match = _OFFSET.fullmatch(name)
    if match:
        offset = datetime.timedelta(hours=int(match[2]), minutes=int(match[3]))
        if offset <= datetime.timedelta(hours=14) and int(match[3]) < 60:
            return datetime.timezone(-offset if match[1] == "-" else offset)
    elif name:  # of which some systems make a zone
        try:
            return zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise ValueError(
        f"unknown time zone {name!r}; give a name as in Asia/Shanghai or an offset as in +08:00"
    )


_UTC = {"UTC", "ETC/UTC", "+00:00"}


def session_of(ddl: DdlJob) -> ConversionSession:
    """Return the upstream session of a DDL job, as far as TiDB recorded it."""
    from sluice.tidb.conversion import ConversionSession  # with Arrow: settings need a zone alone

    began = ddl.converted_from_ts
    return ConversionSession(
        ddl.sql_mode,
        _zone(ddl.time_zone),
        ddl.time_zone,
        tso.to_datetime(began) if began else None,
        tso.to_datetime(ddl.commit_ts) if began else None,
    )


def _zone(name: str) -> datetime.tzinfo | None:
    if name.upper() in _UTC:
        return datetime.UTC
    try:
        return find_zone(name)
    except ValueError:
        return None

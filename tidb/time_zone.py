"""Time zones as TiDB's sessions and our settings name them."""

from __future__ import annotations

import datetime
import re
import zoneinfo

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
        f"{name!r} is no time zone; give a name as in Asia/Shanghai or an offset as in +08:00"
    )

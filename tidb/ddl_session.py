"""The session in which TiDB converted values for a changed column type, from its DDL job."""

from __future__ import annotations

import datetime

from sluice.tidb import tso
from sluice.tidb.conversion import ConversionSession
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.time_zone import find_zone

_UTC = {"UTC", "ETC/UTC", "+00:00"}


def session_of(ddl: DdlJob) -> ConversionSession:
    """Return the upstream session of a DDL job, as far as TiDB recorded it."""
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

"""The session a DDL statement runs in: strings without backslash escapes, and the clock and the time zone it had upstream.

Two things in a statement depend on the session: CURRENT_TIMESTAMP as the value of existing rows, and what a TIMESTAMP becomes when it
is changed into something else, or the other way round.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import zoneinfo
from collections.abc import Iterator, Mapping
from typing import Any

from etl._ddl_columns import added_columns, changed_columns
from etl._sql_text import quote_name, quote_table
from etl.mysql import DownstreamError, MySQLSession
from upstream.schema import Column, Table

_CURRENT_TIME = "CURRENT_TIMESTAMP"
_UNKNOWN_ZONE = 1298
_UTC = {"", "UTC", "ETC/UTC", "+00:00"}


class UnknownZoneError(Exception):
    """The server doesn't know the time zone in which TiDB converted values, and no fixed offset stands for it."""


@contextlib.contextmanager
def ddl_session(session: MySQLSession, ddl: Mapping[str, Any]) -> Iterator[None]:
    """Set the session up for one DDL job, and back. Raises UnknownZoneError."""
    mode = str(session.query("SELECT @@SESSION.sql_mode")[0][0])
    # TiDB rounds what a change of type cuts off a time; MariaDB does so only if told to.
    rounding = ",TIME_ROUND_FRACTIONAL" if session.dialect.rounds_time_by_mode else ""
    session.query(f"SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',NO_BACKSLASH_ESCAPES{rounding}')")
    try:
        moment = _moment(ddl)
        if moment:
            # Existing rows get the default of the moment at which TiDB added the column.
            session.query("SET SESSION timestamp = UNIX_TIMESTAMP(%s)", (moment,))
        _set_zone(session, ddl)
        yield
    finally:
        with contextlib.suppress(DownstreamError):  # a lost connection has no session to be put right
            session.query("SET SESSION timestamp = DEFAULT, time_zone = '+00:00', sql_mode = %s", (mode,))


def _moment(ddl: Mapping[str, Any]) -> str:
    """The value that CURRENT_TIMESTAMP had for existing rows when a column was added, as TiDB noted it; "" if it didn't."""
    for _, column in added_columns(ddl):
        if _is_current_time(column) and re.match(r"\d{4}-\d\d-\d\d ", str(column.origin_default)):
            return str(column.origin_default)
    return ""


def _is_current_time(column: Column) -> bool:
    return isinstance(column.default, str) and column.default.upper().startswith(_CURRENT_TIME)


def _set_zone(session: MySQLSession, ddl: Mapping[str, Any]) -> None:
    """The upstream session's time zone, where a column becomes a TIMESTAMP or stops being one."""
    zone = str(ddl.get("time_zone") or "")
    changed = _converted(ddl)
    if zone.upper() in _UTC or not changed:
        return
    try:
        session.query("SET SESSION time_zone = %s", (zone,))
    except DownstreamError as error:
        if error.code != _UNKNOWN_ZONE:
            raise
        session.query("SET SESSION time_zone = %s", (_fixed_offset(session, zone, changed),))


def _converted(ddl: Mapping[str, Any]) -> list[tuple[Table, Column]]:
    kinds = ((change, {change.old.kind, change.new.kind}) for change in changed_columns(ddl))
    return [(change.before, change.old) for change, found in kinds if len(found) == 2 and "timestamp" in found]


def _fixed_offset(session: MySQLSession, name: str, columns: list[tuple[Table, Column]]) -> str:
    """The one offset that the zone `name` has over all values of these columns, as ``+08:00``."""
    reason = f"values were converted in the time zone {name}, which the downstream doesn't know: load its time zone tables (mariadb-tzinfo-to-sql)"
    try:
        zone = zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
        raise UnknownZoneError(reason) from error
    offsets: set[datetime.timedelta] = set()
    for table, column in columns:
        key = quote_name(column.name)
        ((low, high),) = session.query(
            f"SELECT CAST(MIN({key}) AS CHAR), CAST(MAX({key}) AS CHAR) FROM {quote_table(table)} WHERE {key} > '1970-01-01'"
        )
        if low is None:
            continue
        try:
            first, last = (datetime.datetime.strptime(str(text)[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=datetime.UTC) for text in (low, high))
        except ValueError as error:
            raise UnknownZoneError(reason) from error
        days = (last - first).days + 3
        offsets |= {
            offset for n in range(days) if (offset := zone.utcoffset((first + datetime.timedelta(n - 1)).astimezone(zone))) is not None
        }
    if len(offsets) > 1:
        raise UnknownZoneError(reason)
    minutes = int(offsets.pop().total_seconds()) // 60 if offsets else 0
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"

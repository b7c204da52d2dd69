"""Compare the clocks by which people read TIMESTAMPs in TiDB and downstream."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from sluice.errors import OK, WARN, CheckResult, SluiceError
from sluice.etl.changes.formats.sql_text import quote_text
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession
from sluice.etl.downstream import MySQLSession
from sluice.etl.settings import Downstream, Settings
from sluice.tidb.time_zone import find_zone

__all__ = ["ServerZone", "check_time_zones", "compare_zones"]

_AREA = "zones"
_NAMES = "SELECT @@global.time_zone, @@system_time_zone"
_MINUTES = (
    "SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(),"
    " CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', @@global.time_zone))"
)


class ServerZone(NamedTuple):
    """The time zone that a server gives new sessions, and its minutes east of UTC at present.

    `minutes` is None if neither the server nor this machine knows the zone.
    """

    name: str
    minutes: int | None

    @property
    def offset(self) -> str:
        """Return it as MySQL writes an offset, as in ``+08:00``."""
        minutes = self.minutes or 0
        return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"

    def __str__(self) -> str:
        return self.name if self.minutes is None else f"{self.name} (UTC{self.offset} now)"


def check_time_zones(settings: Settings) -> Iterator[CheckResult]:
    """Yield how the zones of new sessions in TiDB and downstream compare.

    Values don't depend on them: Sluice's own sessions are in UTC. Nothing is compared without
    TiDB's SQL address, or if the downstream is no database.
    """
    target = settings.target
    if not settings.upstream.sql_host or not isinstance(target, Downstream):
        return
    try:
        with TidbSession(TidbAddress.from_settings(settings.upstream)) as tidb:
            upstream = _by_name(*((each or b"").decode() for each in tidb.query(_NAMES)[0]))
        session = MySQLSession(target)
        try:
            session.connect()
            there = _by_name(*map(str, session.query(_NAMES)[0]))
            if not session.dialect.is_tidb:  # it knows what SYSTEM and CEST are
                ((minutes,),) = session.query(_MINUTES)
                there = there._replace(minutes=there.minutes if minutes is None else int(minutes))
        finally:
            session.close()
    except (SluiceError, OSError):
        text = "not compared: TiDB or the downstream doesn't answer"
        yield CheckResult(_AREA, WARN, text, "repair what the lines above name")
        return
    yield compare_zones(upstream, there)


def compare_zones(upstream: ServerZone, downstream: ServerZone) -> CheckResult:
    """Return OK if both servers' clocks show the same at present, else a warning."""
    text = f"new sessions in TiDB have {upstream}, downstream {downstream}"
    if upstream.minutes == downstream.minutes is not None:
        return CheckResult(_AREA, OK, text)
    zone = upstream.name if upstream.minutes is None else upstream.offset
    return CheckResult(
        _AREA,
        WARN,
        f"{text}: TIMESTAMPs are equal, but readers may see them by another clock",
        f"`SET GLOBAL time_zone = {quote_text(zone)}` downstream and in its settings, or the zone's"
        " name there; leave it if that is meant",
    )


def _by_name(name: str, system: str) -> ServerZone:
    """Return the zone of a server from its variables time_zone and system_time_zone."""
    shown = system if name == "SYSTEM" else name
    try:
        offset = datetime.now(UTC).astimezone(find_zone(shown)).utcoffset()
    except ValueError:
        return ServerZone(shown, None)
    return ServerZone(shown, None if offset is None else int(offset.total_seconds()) // 60)

"""Check everything that a running pipeline needs: what answers, what is short, what holds it back.

It reads from every party and writes nothing. Each result that isn't right names a way out.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

from sluice.errors import FAIL, OK, WARN, CheckResult, SluiceError, ours
from sluice.etl.cached_value import SourcePoller
from sluice.etl.copy.rule_changes import outdated_tables
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession
from sluice.etl.display_units import format_duration, format_size
from sluice.etl.downstream import MySQLSession
from sluice.etl.operate.absent_tables import check_tables
from sluice.etl.operate.mark_check import check_marks
from sluice.etl.operate.overview import ArchivePart, Overview, overview
from sluice.etl.operate.takeover_check import check_tidb_servers
from sluice.etl.operate.time_zones import check_time_zones
from sluice.etl.settings import Downstream, Settings
from sluice.etl.spark.reachability import check_reachable
from sluice.etl.upstream_clock import describe_skew
from sluice.relay.url import local_folder
from sluice.tidb import EtcdClient, PDClient, Registry, tso
from sluice.tidb.table_name import abbreviate

__all__ = ["AREAS", "PARTIES", "check_pipeline"]

AREAS = ("upstream", "tidb", "downstream", "tables", "zones", "spark", "disk", "replication")
PARTIES = ("upstream", "tidb", "pumps", "downstream", "zones", "spark", "disk")
"""Those that can be checked before anything runs. `replication` has the pumps with their lag."""
_TIMEOUT_S = 15.0
_PD_TIMEOUT_S = 5.0
_MAX_SKEW_MS = 1_000
_MAX_PLAUSIBLE_SKEW_MS = 12 * 3_600_000
"""No clock that is only wrong is so far behind: time zones differ by less."""
_SET_CLOCKS = (
    "set both by NTP: lag and times ago go by PD's clock, retention and ages by this machine's"
)
_REPLAYED = (
    "an upstream that replays old timestamps, as the stand-in of `sluice up` does, is behind by"
    " design: lag and times ago go by its clock. Else set both by NTP"
)
_MIN_FREE_RATIO, _MIN_FREE_BYTES = 0.1, 5 * 10**9
_MAX_OUTDATED = 20
_MAX_VERIFIED_AGE_MS = 7 * 86_400_000


def check_pipeline(settings: Settings, areas: Collection[str] = AREAS) -> list[CheckResult]:
    """Return the results of the checks of some of AREAS and PARTIES, which run side by side.

    It never raises for what can't be reached: that is a result.
    """
    checks = {name: functools.partial(_run, name, settings) for name in areas}
    found = SourcePoller().poll(checks, _TIMEOUT_S)
    results: list[CheckResult] = []
    for name in areas:
        if name in found.values:
            results += found.values[name]
        else:
            text = f"no answer within {_TIMEOUT_S:.0f} s"
            results.append(CheckResult(name, FAIL, text, _HINTS[name]))
    return results


def _run(area: str, settings: Settings) -> list[CheckResult]:
    results: list[CheckResult] = []
    try:
        results.extend(_CHECKS[area](settings))  # what came before an error stays
    except Exception as error:
        failure = ours(error)
        results.append(CheckResult(area, FAIL, str(failure.args[0]), _hint(area, failure)))
    return results


def _hint(area: str, failure: SluiceError) -> str:
    """Return the error's own hint; that of its class is about tasks."""
    return failure.hint if failure.hint != type(failure).hint else _HINTS[area]


def _upstream(settings: Settings) -> Iterator[CheckResult]:
    upstream, area = settings.upstream, "upstream"
    with PDClient(upstream.pd_urls, tls=upstream.tls(), timeout_s=_PD_TIMEOUT_S) as pd:
        skew_ms = tso.ms_between(tso.wall_clock(), pd.tso())
        yield CheckResult(area, OK, f"cluster {pd.cluster_id} at {upstream.pd_urls}")
    if abs(skew_ms) > _MAX_SKEW_MS:
        yield CheckResult(
            area,
            WARN,
            f"PD's clock is {describe_skew(skew_ms)} this machine's",
            _REPLAYED if skew_ms < -_MAX_PLAUSIBLE_SKEW_MS else _SET_CLOCKS,
        )


def _tidb(settings: Settings) -> Iterator[CheckResult]:
    upstream = settings.upstream
    with EtcdClient(upstream.pd_urls, tls=upstream.tls(), timeout_s=_PD_TIMEOUT_S) as etcd:
        online = [pump for pump in Registry(etcd).pumps() if pump.state == "online"]
        if (
            settings.open_relay().known_pumps.load().is_captured
            or upstream.source == "capture"
            or (online and all(pump.captured_cluster_id is not None for pump in online))
        ):
            yield CheckResult("tidb", OK, "changes are captured from TiKV; TiDB needs no binlog")
        else:
            yield from check_tidb_servers(etcd)
    if upstream.sql_host:
        address = TidbAddress.from_settings(upstream)
        with TidbSession(address) as session:
            session.query("SHOW MASTER STATUS")  # a copy does, and needs REPLICATION CLIENT
        yield CheckResult("tidb", OK, f"{address.user}@{address.shown} may log in for copies")


def _downstream(settings: Settings) -> Iterator[CheckResult]:
    target = settings.target
    if not isinstance(target, Downstream):
        yield CheckResult("downstream", OK, f"{settings.downstream.type}: no database to check")
        return
    session = MySQLSession(replace(target, loopback_control=False))  # which makes a table
    try:
        session.connect()  # looks at the version, the variables and the rights
        yield CheckResult(
            "downstream",
            OK,
            f"{session.address}: {session.dialect}; its variables and the user's rights suffice",
        )
        yield from check_marks(session, target)
    finally:
        session.close()


def _spark(settings: Settings) -> Iterator[CheckResult]:
    check_reachable(settings.spark)
    yield CheckResult("spark", OK, f"{settings.spark.remote} takes connections")


def _disk(settings: Settings) -> Iterator[CheckResult]:
    for name, url in (("relay log", settings.relay.url), ("archive", settings.archive_url)):
        folder = local_folder(url)
        if folder is None:
            continue
        place = Path(folder)
        while not place.exists():
            place = place.parent
        if not os.access(place, os.W_OK):
            yield CheckResult(
                "disk",
                WARN,
                f"{name} {url}: the user who runs this may not write to {place}",
                "let the user of landing and copies write there",
            )
        usage = shutil.disk_usage(place)
        text = f"{name} {url}: {format_size(usage.free)} of {format_size(usage.total)} are free"
        if usage.free < max(_MIN_FREE_BYTES, _MIN_FREE_RATIO * usage.total):
            yield CheckResult(
                "disk", WARN, text, "[relay] keep and `sluice archive retain` say what may go"
            )
        else:
            yield CheckResult("disk", OK, text)


def _replication(settings: Settings) -> Iterator[CheckResult]:
    seen = overview(settings, _TIMEOUT_S / 2)
    for blocker in seen.held_back:
        yield CheckResult("replication", FAIL, blocker, "`sluice status` has the details")
    if not seen.held_back:
        lag_ms = seen.downstream.lag_ms
        lag = "has no checkpoint yet" if lag_ms is None else f"lag {_ago(lag_ms)}"
        yield CheckResult("replication", OK, f"nothing holds it back; {seen.downstream.name} {lag}")
    yield from _pumps(seen)
    yield from _safety(seen)
    yield from _outdated(settings)


def _pumps(seen: Overview) -> Iterator[CheckResult]:
    online = [pump for pump in seen.pumps if pump.registry_state == "online"]
    names = [f"{pump.node_id} ({_ago(pump.lag_ms)} behind)" for pump in online]
    is_any = any(pump.registry_state != "offline" for pump in seen.pumps)
    yield _pump_result(names, is_any=is_any, is_captured=any(each.is_captured for each in online))


def _registered_pumps(settings: Settings) -> Iterator[CheckResult]:
    upstream = settings.upstream
    with EtcdClient(upstream.pd_urls, tls=upstream.tls(), timeout_s=_PD_TIMEOUT_S) as etcd:
        pumps = Registry(etcd).pumps()
    online = [pump for pump in pumps if pump.state == "online"]
    yield _pump_result(
        [f"{pump.node_id} at {pump.host}" for pump in online],
        is_any=any(pump.state != "offline" for pump in pumps),
        is_captured=any(pump.captured_cluster_id is not None for pump in online),
    )


def _pump_result(names: list[str], *, is_any: bool, is_captured: bool) -> CheckResult:
    """Return the result about pumps that are online; `is_any`: one of any state is registered."""
    listed = ", ".join(names)
    if not is_any:
        hint = "start one: `sluice pump --help`"
        return CheckResult("pumps", FAIL, "none is registered", hint)
    if len(names) != 1:
        return CheckResult("pumps", OK, f"{len(names)} online: {listed}")
    waits = "landing waits" if is_captured else "TiDB has none to write to, and stops"
    text = f"only one is online: {listed}. While it is replaced {waits}"
    return CheckResult("pumps", WARN, text, "start a second one")


def _safety(seen: Overview) -> Iterator[CheckResult]:
    archive, verified = seen.archive, seen.verified
    if not archive.hi:
        yield CheckResult(
            "archive",
            WARN,
            "nothing is archived: no moment can be restored",
            "`sluice archive run`",
        )
    elif not archive.promised_ts:
        yield CheckResult(
            "archive",
            WARN,
            _unrestorable(archive),
            "`sluice snapshot make`; `sluice archive status` has the reasons",
        )
    else:
        yield CheckResult(
            "archive",
            OK,
            f"all tables can be restored as of every moment from {tso.text(archive.promised_ts)}"
            f" through {tso.text(archive.hi)}",
        )
    if verified.age_ms is None:
        yield CheckResult("verify", WARN, "both sides were never compared", "`sluice verify`")
    elif verified.age_ms > _MAX_VERIFIED_AGE_MS:
        yield CheckResult(
            "verify", WARN, f"both sides were last compared {_ago(verified.age_ms)} ago",
            "`sluice verify`",
        )  # fmt: skip
    elif verified.uncompared:
        first = verified.uncompared[0]
        text = f"{verified.text}: {first['table']}: {first['problem']}"
        yield CheckResult("verify", WARN, text, "`sluice status` names all; `sluice verify`")
    elif not verified.differences:
        text = f"{verified.text}; the oldest result is {_ago(verified.age_ms)} old"
        yield CheckResult("verify", OK, text)


def _unrestorable(archive: ArchivePart) -> str:
    if not archive.unrestorable:
        return f"through {tso.text(archive.hi)}, without a table that can be restored"
    return (
        f"through {tso.text(archive.hi)}, but all tables can't be restored:"
        f" {abbreviate(archive.unrestorable, kind='tables')}"
    )


def _outdated(settings: Settings) -> Iterator[CheckResult]:
    """Yield the tables that follow former rules downstream."""
    try:
        found = outdated_tables(settings)
    except (SluiceError, OSError, ValueError) as error:
        yield CheckResult(
            "rules",
            WARN,
            f"it is unknown which tables follow former ones: {error}",
            _HINTS["rules"],
        )
        return
    for table in found[:_MAX_OUTDATED]:
        text = f"rows of {table.name} follow former rules: {table.why}"
        yield CheckResult("rules", WARN, text, f"`{table.command}`")
    if (others := len(found) - _MAX_OUTDATED) > 0:
        yield CheckResult(
            "rules", WARN, f"so do rows of {others:,} more tables", "`sluice status --json`"
        )


def _ago(ms: float) -> str:
    return format_duration(ms / 1000) if ms >= 1_000 else f"{ms:.0f} ms"


_CHECKS: dict[str, Callable[[Settings], Iterator[CheckResult]]] = {
    "upstream": _upstream,
    "tidb": _tidb,
    "pumps": _registered_pumps,
    "downstream": _downstream,
    "tables": check_tables,
    "zones": check_time_zones,
    "spark": _spark,
    "disk": _disk,
    "replication": _replication,
}
_HINTS = {
    "upstream": "see [upstream] pd-urls and ssl-ca, and whether PD runs",
    "tidb": "see [upstream] sql-host and sql-user, and whether TiDB runs",
    "pumps": "see [upstream] pd-urls and ssl-ca, and whether PD runs",
    "downstream": "see [downstream] host, port, user and password-env, and whether it runs",
    "tables": "see [upstream] pd-urls and [downstream] host, and whether both run",
    "zones": "see `SELECT @@global.time_zone` on both sides",
    "spark": "start it, or see [spark] remote",
    "disk": "see [relay] url and [archive] url",
    "replication": "`sluice status` has the details",
    "rules": "`sluice status` has what was known when applying began",
}

"""Check whether a capture could begin behind a commit timestamp. Nothing lasting is changed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc

from sluice.errors import FAIL, OK, WARN, CheckResult
from sluice.pump_service.capture.capture import REGIONS_PER_CALL, SPANS
from sluice.pump_service.capture.streams import METADATA, METHOD
from sluice.tidb import EtcdClient, EtcdError, tso
from sluice.tidb.etcd import parse_version, tidb_versions
from sluice.tidb.pd import PDClient, PDError, Store
from sluice.tidb.rpc import TLS, Channels, describe, status

OLDEST_VERSION = (7, 5)
_OLDEST = ".".join(map(str, OLDEST_VERSION))
_MANY_REGIONS = 100_000
"""A pump subscribes so many in 1 GiB of memory."""
_SERVICE_ID = "sluice-capture-check"
_SERVICE_TTL_S = 60
"""PD forgets the check's service safe point after this time, if the check is killed before."""
_CONNECT_TIMEOUT_S = 5.0
_REGION_RETRIES, _REGION_RETRY_S = 10, 0.1


def check_capture(
    pd: PDClient, etcd: EtcdClient, tls: TLS | None, position_ts: int
) -> Iterator[CheckResult]:
    """Yield what speaks for and against a capture behind `position_ts` (TSO).

    A server that doesn't answer is a result, too.
    """
    checks = _stores(pd, tls), _tidb_servers(etcd), _history(pd, position_ts), _regions(pd)
    for check in checks:
        try:
            yield from check
        except PDError as error:
            yield CheckResult("pd", FAIL, str(error), "check [upstream] pd-urls and PD's log")
        except EtcdError as error:
            yield CheckResult("tidb", FAIL, str(error), "check [upstream] pd-urls")


def _stores(pd: PDClient, tls: TLS | None) -> Iterator[CheckResult]:
    stores = [store for store in pd.get_stores() if not store.is_tiflash]
    if not stores:
        yield CheckResult(
            "tikv", FAIL, "PD knows no TiKV", "check that [upstream] pd-urls are right"
        )
    for store in stores:
        yield _version("tikv", f"TiKV {store.address}", store.version)
    channels = Channels(tls)
    try:
        for store in stores:
            yield _connection(channels, store, tls)
    finally:
        channels.close()


def _version(area: str, name: str, version: str) -> CheckResult:
    if parse_version(version) < OLDEST_VERSION:
        return CheckResult(
            area,
            FAIL,
            f"{name}: version {version!r} is older than {_OLDEST}, or unknown",
            f"upgrade to {_OLDEST}, and replicate by binlogs until then",
        )
    return CheckResult(area, OK, f"{name}: version {version}")


def _connection(channels: Channels, store: Store, tls: TLS | None) -> CheckResult:
    """Open and end a stream of change data, which shows the way, TLS, rights and the method."""
    name, way = f"TiKV {store.address}", "with TLS" if tls else "without TLS"
    try:
        channel = channels.get(store.address)
        grpc.channel_ready_future(channel).result(_CONNECT_TIMEOUT_S)
    except (grpc.FutureTimeoutError, OSError) as error:
        why = str(error) or f"no connection within {_CONNECT_TIMEOUT_S:.0f} s"
        return CheckResult(
            "tikv",
            FAIL,
            f"{name}: can't be reached {way}: {why}",
            "run the check on the pump's host; check the firewall, and [upstream] ssl-ca, ssl-cert"
            " and ssl-key",
        )
    call = channel.stream_stream(METHOD, None, None)
    try:
        for _ in call(iter(()), metadata=METADATA, timeout=_CONNECT_TIMEOUT_S):
            break
    except grpc.RpcError as error:
        found = status(error)
        if found is grpc.StatusCode.UNIMPLEMENTED:
            return CheckResult(
                "tikv",
                FAIL,
                f"{name}: has no multiplexed change data: {describe(error)}",
                f"upgrade TiKV to {_OLDEST}, and replicate by binlogs until then",
            )
        if found not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED):
            return CheckResult(
                "tikv",
                FAIL,
                f"{name}: refuses to stream changes: {describe(error)}",
                "have TiKV's security.cert-allowed-cn name the certificate of [upstream] ssl-cert",
            )
    return CheckResult("tikv", OK, f"{name}: streams changes {way}")


def _tidb_servers(etcd: EtcdClient) -> Iterator[CheckResult]:
    for address, version in tidb_versions(etcd).items():
        yield _version("tidb", f"TiDB {address}", version)


def _history(pd: PDClient, position_ts: int) -> Iterator[CheckResult]:
    position, safe_point = tso.text(position_ts), pd.get_gc_safe_point()
    lost = (
        "copy the tables again, or keep to binlogs; before the next attempt: SET GLOBAL"
        " tidb_gc_life_time = '24h'"
    )
    if safe_point > position_ts:
        yield CheckResult(
            "history",
            FAIL,
            f"TiKV may have dropped versions through {tso.text(safe_point)}, and the"
            f" capture would begin at {position}",
            lost,
        )
        return
    yield CheckResult("history", OK, f"TiKV has all versions behind {position}")
    try:
        least = pd.update_service_gc_safe_point(_SERVICE_ID, _SERVICE_TTL_S, position_ts)
        pd.update_service_gc_safe_point(_SERVICE_ID, 0, 0)
    except PDError as error:
        yield CheckResult(
            "history",
            FAIL,
            f"PD sets no service safe point: {error}",
            "check PD's version and log",
        )
        return
    if least > position_ts:
        yield CheckResult(
            "history",
            FAIL,
            f"PD keeps versions behind {tso.text(least)} only, and the capture"
            f" would begin at {position}",
            lost,
        )
    else:
        yield CheckResult("history", OK, f"PD keeps versions behind {position}")


def _regions(pd: PDClient) -> Iterator[CheckResult]:
    leads: dict[int, bool] = {}
    failures = 0
    for at, end in SPANS:
        while at < end:
            regions = pd.scan_regions(at, end, REGIONS_PER_CALL)
            if not regions:
                failures += 1
                if failures > _REGION_RETRIES:
                    yield CheckResult(
                        "regions", FAIL, f"PD knows none at key {at.hex()}", "check PD's regions"
                    )
                    return
                time.sleep(_REGION_RETRY_S)
                continue
            leads.update((region.id, region.leader is not None) for region in regions)
            at = regions[-1].end_key or end
    count, without_leader = len(leads), sum(not leads[each] for each in leads)
    if without_leader:
        yield CheckResult(
            "regions",
            FAIL,
            f"{without_leader:,} of {count:,} have no leader",
            "check TiKV's stores",
        )
    elif count > _MANY_REGIONS:
        yield CheckResult(
            "regions",
            WARN,
            f"{count:,} to subscribe, and one pump was tried with {_MANY_REGIONS:,}",
            "make TiKV's regions larger (coprocessor.region-split-size) and let PD merge them",
        )
    else:
        yield CheckResult("regions", OK, f"{count:,} to subscribe, all with a leader")

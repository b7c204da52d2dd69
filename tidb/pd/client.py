"""A client of PD: timestamps, regions, stores, GC safe points.

Every call goes to the leader, which may change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from sluice.tidb import pb
from sluice.tidb.backoff import Backoff, Deadline
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.memcomparable import encode_bytes
from sluice.tidb.pd.errors import PDError, worth_retrying
from sluice.tidb.pd.region import Region, Store, region_from_pb, store_from_pb
from sluice.tidb.pd.tso_stream import TsoStream
from sluice.tidb.rpc import TLS, Channels, ClosedError, describe, split_urls, target

_RETRIED_TYPES = {pb.pd.NOT_BOOTSTRAPPED, pb.pd.REGION_NOT_FOUND, pb.pd.UNKNOWN}


class PDClient:
    """Thread-safe.

    Connects on first use.

    `pd_urls`: client URLs of any members (`http://host:2379`; a list, or one text with commas).
    `timeout_s` bounds every call, retries included. All calls raise PDError.
    """

    def __init__(
        self, pd_urls: Sequence[str] | str, *, tls: TLS | None = None, timeout_s: float = 5.0
    ) -> None:
        self._seeds = split_urls(pd_urls)
        self._timeout_s = timeout_s
        # One silent member must leave time to ask another.
        self._attempt_s = max(timeout_s / 3, 0.2)
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._channels = Channels(tls)
        self.is_plain = tls is None
        """whether it is reached without TLS"""
        self._members: list[str] = []
        self._leader: str | None = None
        self._cluster_id = 0
        self._closed = threading.Event()
        self._tso = TsoStream(self, timeout_s)

    @property
    def urls(self) -> list[str]:
        """Return the client URLs known: those given and those of the members found."""
        with self._lock:
            return list(dict.fromkeys([*self._seeds, *self._members]))

    @property
    def cluster_id(self) -> int:
        """Return the id of the TiDB cluster, which every binlog call carries."""
        if not self._cluster_id:
            self._find_leader(Backoff(Deadline(self._timeout_s), self._closed.wait))
        return self._cluster_id

    def tso(self) -> int:
        """Return a fresh timestamp, greater than every one this client returned before.

        Many threads share a request.
        """
        return self._tso.get()

    def get_region(self, key: bytes) -> Region:
        """Return the region that holds a raw key. Waits while PD doesn't know one."""
        request = pb.pd.GetRegionRequest(region_key=encode_bytes(key))
        response = self._call(
            "GetRegion", request, pb.pd.GetRegionResponse, lambda answer: bool(answer.region.id)
        )
        try:
            return region_from_pb(response.region, response.leader)
        except CodecError as error:
            raise PDError(
                f"PD sent region {response.region.id} with a damaged key: {error}"
            ) from error

    def scan_regions(self, start: bytes, end: bytes, limit: int) -> list[Region]:
        """Return at most `limit` regions of the raw keys [start, end), in order.

        They begin with the first one and have no hole. An empty `end` is unbounded. The list is
        empty while PD doesn't know the region of `start`.
        """
        request = pb.pd.ScanRegionsRequest(
            start_key=encode_bytes(start) if start else b"",
            end_key=encode_bytes(end) if end else b"",
            limit=limit,
        )
        response = self._call("ScanRegions", request, pb.pd.ScanRegionsResponse)
        pairs = [(each.region, each.leader) for each in response.regions] or list(
            zip(response.region_metas, response.leaders, strict=False)
        )
        found: list[Region] = []
        for meta, leader in pairs:
            try:
                region = region_from_pb(meta, leader)
            except CodecError as error:
                raise PDError(f"PD sent region {meta.id} with a damaged key: {error}") from error
            if not (region.start_key == found[-1].end_key if found else region.covers(start)):
                break
            found.append(region)
        return found

    def get_store(self, store_id: int) -> Store:
        """Return the TiKV node with that id."""
        request = pb.pd.GetStoreRequest(store_id=store_id)
        response = self._call("GetStore", request, pb.pd.GetStoreResponse)
        if not response.store.id:
            raise PDError(f"PD knows no store {store_id}")
        return store_from_pb(response.store)

    def get_stores(self) -> list[Store]:
        """Return the nodes of TiKV and TiFlash, without those that were removed."""
        request = pb.pd.GetAllStoresRequest(exclude_tombstone_stores=True)
        response = self._call("GetAllStores", request, pb.pd.GetAllStoresResponse)
        return [store_from_pb(store) for store in response.stores]

    def get_gc_safe_point(self) -> int:
        """Return the TSO below which TiKV may have dropped old versions."""
        request = pb.pd.GetGCSafePointRequest()
        return int(self._call("GetGCSafePoint", request, pb.pd.GetGCSafePointResponse).safe_point)

    def update_service_gc_safe_point(self, service_id: str, ttl_s: int, safe_point: int) -> int:
        """Keep versions at or after `safe_point` (TSO) for `ttl_s` seconds; 0 releases them.

        Returns the smallest safe point of all services: if it is above `safe_point`, the request
        came too late.
        """
        request = pb.pd.UpdateServiceGCSafePointRequest(
            service_id=service_id.encode(), TTL=ttl_s, safe_point=safe_point
        )
        response = self._call(
            "UpdateServiceGCSafePoint", request, pb.pd.UpdateServiceGCSafePointResponse
        )
        return int(response.min_safe_point)

    def close(self) -> None:
        """End the timestamp stream and the connections. Calls under way fail."""
        self._closed.set()
        self._tso.close()
        self._channels.close()

    def __enter__(self) -> PDClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # How a call finds the leader; the timestamp stream uses it too.

    def leader_channel(self, backoff: Backoff) -> tuple[str, grpc.Channel]:
        """Return the leader's URL and a channel to it. Looks for the leader if it isn't known."""
        if self._closed.is_set():
            raise PDError("the PD client is closed")
        leader = self._leader or self._find_leader(backoff)
        return leader, self._channel(leader)

    def forget_leader(self, url: str) -> None:
        """Forget the leader: the next call looks for it among the members."""
        with self._lock:
            if self._leader == url:
                self._leader = None

    def header(self) -> pb.pd.RequestHeader:
        return pb.pd.RequestHeader(cluster_id=self._cluster_id)

    def _channel(self, url: str) -> grpc.Channel:
        try:
            return self._channels.get(url)
        except ClosedError as error:
            raise PDError("the PD client is closed") from error
        except OSError as error:
            raise PDError(f"TLS to PD at {url}: {error}") from error

    def _call(
        self,
        method: str,
        request: Any,
        response_type: Any,
        usable: Callable[[Any], bool] = lambda answer: True,
    ) -> Any:
        backoff = Backoff(Deadline(self._timeout_s), self._closed.wait)
        failure = "no attempt was made"
        while True:
            leader, channel = self.leader_channel(backoff)
            request.header.CopyFrom(self.header())
            try:
                call = channel.unary_unary(
                    f"/pdpb.PD/{method}",
                    request_serializer=type(request).SerializeToString,
                    response_deserializer=response_type.FromString,
                )
                response = call(
                    request, timeout=max(0.05, min(self._attempt_s, backoff.deadline.left()))
                )
            except ValueError as error:  # grpc's word for a closed channel
                raise PDError(f"{method}: the PD client is closed") from error
            except grpc.RpcError as error:
                failure = describe(error)
                if not worth_retrying(error):
                    raise PDError(f"PD at {leader} refused {method}: {failure}") from error
                self.forget_leader(leader)
            else:
                problem = response.header.error
                if problem.type == pb.pd.OK and usable(response):
                    return response
                failure = f"{pb.pd.ErrorType.Name(problem.type)} {problem.message}".strip()
                if problem.type == pb.pd.OK:
                    failure = "the answer is empty"
                elif problem.type not in _RETRIED_TYPES:
                    raise PDError(f"PD at {leader} refused {method}: {failure}")
                elif "leader" in problem.message:
                    self.forget_leader(leader)
            if not backoff.wait("pd", 50, 3000):
                raise PDError(
                    f"PD did not answer {method} within {self._timeout_s:g} s (leader {leader});"
                    f" last failure: {failure}"
                )

    def _find_leader(self, backoff: Backoff) -> str:
        with self._refreshing:
            if self._leader:  # another thread found it meanwhile
                return self._leader
            while True:
                failures = []
                for url in self.urls:
                    try:
                        leader = self._ask_members(url, backoff.deadline)
                    except grpc.RpcError as error:
                        failures.append(f"{url}: {describe(error)}")
                        continue
                    if leader:
                        return leader
                    failures.append(f"{url}: no leader elected")
                if not backoff.wait("members", 50, 3000) or self._closed.is_set():
                    raise PDError(
                        f"no PD leader found within {self._timeout_s:g} s; check the PD addresses. "
                        + "; ".join(failures)
                    )

    def _ask_members(self, url: str, deadline: Deadline) -> str | None:
        try:
            call = self._channel(url).unary_unary(
                "/pdpb.PD/GetMembers",
                request_serializer=pb.pd.GetMembersRequest.SerializeToString,
                response_deserializer=pb.pd.GetMembersResponse.FromString,
            )
            response = call(
                pb.pd.GetMembersRequest(header=pb.pd.RequestHeader()),
                timeout=max(0.05, min(self._attempt_s, deadline.left())),
            )
        except ValueError as error:
            raise PDError("the PD client is closed") from error
        found = response.header.cluster_id
        if not found:
            return None
        if self._cluster_id and found != self._cluster_id:
            raise PDError(
                f"PD at {url} belongs to cluster {found}, the others to cluster {self._cluster_id}"
            )
        with self._lock:
            self._cluster_id = found
            self._members = [client for member in response.members for client in member.client_urls]
            urls = list(response.leader.client_urls)
            # A PD may advertise an address that only its own network knows; the one that was given
            # works.
            given = [
                seed
                for seed in self._seeds
                if target(seed) in {target(found_url) for found_url in urls}
            ]
            self._leader = next(iter([*given, *urls]), None)
            return self._leader

"""Answer as PD: members, timestamps, regions, stores, GC safe points, with PD's error texts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from sluice.devstack.tidb.oracle import Oracle, OracleError
from sluice.devstack.tidb.regions import Region, RegionMap
from sluice.tidb import pb, pb_grpc
from sluice.tidb.tso import logical, physical_ms

_TIDB_VERSION = "6.6.0"
CAPTURED_VERSION = "8.5.0"
"""Version of a cluster without binlogs, whose changes are captured."""


class PDService(pb_grpc.pd.PDServicer):
    """pdpb.PD.

    `client_url` is what members advertise, `stores` where each store serves gRPC, by id.
    """

    def __init__(
        self,
        cluster_id: int,
        client_url: str,
        stores: Mapping[int, str],
        oracle: Oracle,
        regions: RegionMap,
    ) -> None:
        self._cluster_id = cluster_id
        self._client_url = client_url
        self._stores = stores
        self._oracle = oracle
        self._regions = regions
        self._started = int(time.time())
        self._gc_safe_point = 0
        self.version = _TIDB_VERSION
        # id: (safe point, expires, monotonic s)
        self._service_safe_points: dict[bytes, tuple[int, float]] = {}

    async def GetMembers(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.pd.GetMembersResponse:
        member = pb.pd.Member(
            name="pd-0",
            member_id=self._cluster_id ^ 1,
            peer_urls=[self._client_url],
            client_urls=[self._client_url],
            binary_version=f"v{self.version}",
        )
        return pb.pd.GetMembersResponse(
            header=self._header(), members=[member], leader=member, etcd_leader=member
        )

    async def Tso(
        self, request_iterator: AsyncIterator[Any], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.pd.TsoResponse]:
        async for request in request_iterator:
            await self._check(request, context)
            if request.count == 0:
                await context.abort(
                    grpc.StatusCode.UNKNOWN,
                    "[PD:tso:ErrGenerateTimestamp]tso count should be positive",
                )
            try:
                ts = await self._oracle.take(request.count)
            except OracleError as error:
                await context.abort(
                    grpc.StatusCode.UNKNOWN, f"[PD:tso:ErrGenerateTimestamp]{error}"
                )
            yield pb.pd.TsoResponse(
                header=self._header(),
                count=request.count,
                timestamp=pb.pd.Timestamp(physical=physical_ms(ts), logical=logical(ts)),
            )

    async def GetRegion(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.pd.GetRegionResponse:
        await self._check(request, context)
        return self._region(self._regions.at(request.region_key))

    async def GetPrevRegion(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.pd.GetRegionResponse:
        await self._check(request, context)
        return self._region(self._regions.before(request.region_key))

    async def GetRegionByID(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.pd.GetRegionResponse:
        await self._check(request, context)
        return self._region(self._regions.by_id(request.region_id))

    async def ScanRegions(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.pd.ScanRegionsResponse:
        await self._check(request, context)
        found = self._regions.between(request.start_key, request.end_key, request.limit)
        return pb.pd.ScanRegionsResponse(
            header=self._header(),
            region_metas=[region.meta() for region in found],
            leaders=[region.peer() for region in found],
            regions=[pb.pd.Region(region=region.meta(), leader=region.peer()) for region in found],
        )

    async def GetStore(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.pd.GetStoreResponse:
        await self._check(request, context)
        if request.store_id not in self._stores:
            await context.abort(
                grpc.StatusCode.UNKNOWN, f"invalid store ID {request.store_id}, not found"
            )
        return pb.pd.GetStoreResponse(header=self._header(), store=self._store(request.store_id))

    async def GetAllStores(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.pd.GetAllStoresResponse:
        await self._check(request, context)
        return pb.pd.GetAllStoresResponse(
            header=self._header(), stores=[self._store(each) for each in self._stores]
        )

    async def GetGCSafePoint(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.pd.GetGCSafePointResponse:
        await self._check(request, context)
        return pb.pd.GetGCSafePointResponse(header=self._header(), safe_point=self._gc_safe_point)

    @property
    def gc_safe_point(self) -> int:
        """Return the TSO below which old versions are gone."""
        return self._gc_safe_point

    def collect_garbage(self, wanted: int) -> int:
        """Drop versions older than `wanted` (TSO), but none that a service holds.

        As TiDB's GC worker does. Returns the safe point from now on.
        """
        held = [
            point for point, until in self._service_safe_points.values() if until > time.monotonic()
        ]
        self._gc_safe_point = max(self._gc_safe_point, min([wanted, *held]))
        return self._gc_safe_point

    async def UpdateServiceGCSafePoint(
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> pb.pd.UpdateServiceGCSafePointResponse:
        await self._check(request, context)
        now = time.monotonic()
        points = self._service_safe_points
        if request.TTL <= 0:
            points.pop(request.service_id, None)
        for expired in [name for name, (_, until) in points.items() if until <= now]:
            del points[expired]
        # A safe point below what is guarded already is not taken: the answer tells the caller which
        # one rules. TiDB's GC worker is among the services in a real PD, so that nothing above what
        # it has dropped is too late.
        lowest = min([self._gc_safe_point, *(point for point, _ in points.values())])
        if request.TTL > 0 and (request.safe_point >= lowest or request.service_id in points):
            points[request.service_id] = (request.safe_point, now + request.TTL)
        name, (point, until) = min(
            points.items(),
            key=lambda item: item[1],
            default=(b"gc_worker", (self._gc_safe_point, now + (1 << 31))),
        )
        return pb.pd.UpdateServiceGCSafePointResponse(
            header=self._header(), service_id=name, TTL=int(until - now), min_safe_point=point
        )

    def _header(self) -> pb.pd.ResponseHeader:
        return pb.pd.ResponseHeader(cluster_id=self._cluster_id)

    async def _check(self, request: Any, context: grpc.aio.ServicerContext) -> None:
        sent = request.header.cluster_id
        if sent != self._cluster_id:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"mismatch cluster id, need {self._cluster_id} but got {sent}",
            )

    def _region(self, region: Region | None) -> pb.pd.GetRegionResponse:
        if region is None:
            return pb.pd.GetRegionResponse(header=self._header())
        return pb.pd.GetRegionResponse(
            header=self._header(), region=region.meta(), leader=region.peer()
        )

    def _store(self, store_id: int) -> pb.metapb.Store:
        return pb.metapb.Store(
            id=store_id,
            address=self._stores[store_id],
            peer_address=self._stores[store_id],
            version=self.version,
            start_timestamp=self._started,
            last_heartbeat=time.time_ns(),
        )

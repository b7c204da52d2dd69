"""A small PD and TiKV on real gRPC servers: members and stores that check every request as the real
ones do, and can be told to change leaders, split regions, lock keys, hang and die.
"""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from sluice.tidb import pb, pb_grpc
from sluice.tidb.codec.memcomparable import decode_bytes, encode_bytes
from tests.tidb.wire_pump import SERVER_OPTIONS

CLUSTER_ID = 7710552666848053088


@dataclass
class Range:
    id: int
    start: bytes
    end: bytes
    store: int
    conf_ver: int = 1
    version: int = 1

    def message(self, stores):
        return pb.metapb.Region(
            id=self.id,
            start_key=encode_bytes(self.start) if self.start else b"",
            end_key=encode_bytes(self.end) if self.end else b"",
            region_epoch=pb.metapb.RegionEpoch(conf_ver=self.conf_ver, version=self.version),
            peers=[self.peer(store) for store in stores],
        )

    def peer(self, store):
        return pb.metapb.Peer(id=self.id * 100 + store, store_id=store)

    def covers(self, key):
        return self.start <= key and (not self.end or key < self.end)


@dataclass
class Cluster:
    """The state all servers share. Threads of the servers read it; tests write it."""

    regions: list[Range] = field(default_factory=lambda: [Range(2, b"", b"", 1)])
    pd_regions: list[Range] | None = None  # what PD believes, if it is behind
    data: dict[bytes, bytes] = field(default_factory=dict)
    locks: dict[bytes, pb.tikv.LockInfo] = field(default_factory=dict)
    statuses: dict[bytes, pb.tikv.CheckTxnStatusResponse] = field(default_factory=dict)
    mvcc: dict[bytes, pb.tikv.MvccInfo] = field(default_factory=dict)
    says_not_found: bool = True  # TiKV before 4.0 doesn't
    errors: list[pb.errorpb.Error] = field(default_factory=list)  # given out first, one a request
    calls: Counter = field(default_factory=Counter)
    resolved: list[pb.tikv.ResolveLockRequest] = field(default_factory=list)
    leader: int = 0
    physical: int = 1_700_000_000_000
    logical: int = 0
    tso_hangs: int = 0
    unknown_regions: int = 0
    tso_requests: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self):
        self.members = [
            Server(self, _PD(self, index), pb_grpc.pd.add_PDServicer_to_server)
            for index in range(2)
        ]
        self.stores = {
            store: Server(self, _TiKV(self, store), pb_grpc.tikv.add_TikvServicer_to_server)
            for store in (1, 2)
        }

    @property
    def urls(self):
        return [f"http://{member.address}" for member in self.members]

    def stop(self):
        for server in [*self.members, *self.stores.values()]:
            server.stop()


class Server:
    def __init__(self, cluster, servicer, add):
        self._servicer, self._add = servicer, add
        self._server = None
        self.port = 0
        self.start()

    def start(self):
        self._server = grpc.server(ThreadPoolExecutor(16), options=SERVER_OPTIONS)
        self._add(self._servicer, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def stop(self):
        self._server.stop(0).wait()


class _PD(pb_grpc.pd.PDServicer):
    def __init__(self, cluster, index):
        self._cluster, self._index = cluster, index

    def _head(self):
        return pb.pd.ResponseHeader(cluster_id=CLUSTER_ID)

    def _check(self, request, context):
        self._cluster.calls[f"pd{self._index}"] += 1
        if self._cluster.leader != self._index:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not leader")
        if request.header.cluster_id != CLUSTER_ID:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"mismatch cluster id, need {CLUSTER_ID} but got {request.header.cluster_id}",
            )

    def GetMembers(self, request, context):
        members = [
            pb.pd.Member(name=f"pd{index}", client_urls=[url])
            for index, url in enumerate(self._cluster.urls)
        ]
        leader = members[self._cluster.leader] if self._cluster.leader >= 0 else None
        return pb.pd.GetMembersResponse(header=self._head(), members=members, leader=leader)

    def Tso(self, requests, context):
        for request in requests:
            cluster = self._cluster
            if cluster.leader != self._index:
                context.abort(
                    grpc.StatusCode.UNKNOWN, f"requested pd{self._index} is not leader of cluster"
                )
            with cluster.lock:
                hang = cluster.tso_hangs > 0
                cluster.tso_hangs -= hang
                cluster.logical += request.count
                cluster.tso_requests.append(request.count)
                stamp = pb.pd.Timestamp(physical=cluster.physical, logical=cluster.logical)
            while hang and context.is_active():
                time.sleep(0.02)
            yield pb.pd.TsoResponse(header=self._head(), count=request.count, timestamp=stamp)

    def GetRegion(self, request, context):
        self._check(request, context)
        cluster = self._cluster
        if cluster.unknown_regions:
            cluster.unknown_regions -= 1
            return pb.pd.GetRegionResponse(header=self._head())
        key = decode_bytes(request.region_key, 0)[0]
        region = next(one for one in cluster.pd_regions or cluster.regions if one.covers(key))
        return pb.pd.GetRegionResponse(
            header=self._head(),
            region=region.message(cluster.stores),
            leader=region.peer(region.store),
        )

    def GetStore(self, request, context):
        self._check(request, context)
        if request.store_id not in self._cluster.stores:
            context.abort(
                grpc.StatusCode.UNKNOWN, f"invalid store ID {request.store_id}, not found"
            )
        address = self._cluster.stores[request.store_id].address
        return pb.pd.GetStoreResponse(
            header=self._head(), store=pb.metapb.Store(id=request.store_id, address=address)
        )

    def GetGCSafePoint(self, request, context):
        self._check(request, context)
        return pb.pd.GetGCSafePointResponse(header=self._head(), safe_point=42)

    def UpdateServiceGCSafePoint(self, request, context):
        self._check(request, context)
        return pb.pd.UpdateServiceGCSafePointResponse(
            header=self._head(),
            service_id=request.service_id,
            min_safe_point=max(42, request.safe_point),
        )


class _TiKV(pb_grpc.tikv.TikvServicer):
    def __init__(self, cluster, store):
        self._cluster, self._store = cluster, store

    def _problem(self, request, key):
        cluster, ask = self._cluster, request.context
        with cluster.lock:
            cluster.calls[f"store{self._store}"] += 1
            if cluster.errors:
                return cluster.errors.pop(0)
        error = pb.errorpb.Error(message="refused")
        region = next((one for one in cluster.regions if one.id == ask.region_id), None)
        if ask.peer.store_id != self._store:
            error.store_not_match.actual_store_id = self._store
        elif region is None:
            error.region_not_found.region_id = ask.region_id
        elif region.store != self._store:
            error.not_leader.region_id = region.id
            error.not_leader.leader.CopyFrom(region.peer(region.store))
        elif (ask.region_epoch.version, ask.region_epoch.conf_ver) != (
            region.version,
            region.conf_ver,
        ):
            error.epoch_not_match.current_regions.extend(
                one.message(cluster.stores) for one in cluster.regions
            )
        elif not region.covers(key):
            error.key_not_in_region.key = key
        elif ask.peer.id != region.peer(self._store).id:
            error.mismatch_peer_id.SetInParent()
        else:
            return None
        return error

    def _locked(self, key):
        return (
            pb.tikv.KeyError(locked=self._cluster.locks[key])
            if key in self._cluster.locks
            else None
        )

    def KvGet(self, request, context):
        if problem := self._problem(request, request.key):
            return pb.tikv.GetResponse(region_error=problem)
        if locked := self._locked(request.key):
            return pb.tikv.GetResponse(error=locked)
        value = self._cluster.data.get(request.key)
        return pb.tikv.GetResponse(
            value=value, not_found=value is None and self._cluster.says_not_found
        )

    def KvScan(self, request, context):
        if problem := self._problem(request, request.start_key):
            return pb.tikv.ScanResponse(region_error=problem)
        region = next(one for one in self._cluster.regions if one.id == request.context.region_id)
        assert not region.end or (request.end_key and request.end_key <= region.end), (
            "scan past the region"
        )
        keys = sorted(
            key
            for key in {*self._cluster.data, *self._cluster.locks}
            if request.start_key <= key and (not request.end_key or key < request.end_key)
        )[: request.limit]
        return pb.tikv.ScanResponse(
            pairs=[
                pb.tikv.KvPair(key=key, value=self._cluster.data.get(key), error=self._locked(key))
                for key in keys
            ]
        )

    def KvScanLock(self, request, context):
        if problem := self._problem(request, request.start_key):
            return pb.tikv.ScanLockResponse(region_error=problem)
        region = next(one for one in self._cluster.regions if one.id == request.context.region_id)
        found = [
            lock
            for key, lock in sorted(self._cluster.locks.items())
            if region.covers(key)
            and request.start_key <= key
            and lock.lock_version <= request.max_version
        ]
        return pb.tikv.ScanLockResponse(locks=found[: request.limit])

    def MvccGetByKey(self, request, context):
        if problem := self._problem(request, request.key):
            return pb.tikv.MvccGetByKeyResponse(region_error=problem)
        return pb.tikv.MvccGetByKeyResponse(info=self._cluster.mvcc.get(request.key))

    def KvCheckTxnStatus(self, request, context):
        if problem := self._problem(request, request.primary_key):
            return pb.tikv.CheckTxnStatusResponse(region_error=problem)
        return self._cluster.statuses[request.primary_key]

    def KvResolveLock(self, request, context):
        if problem := self._problem(request, request.keys[0]):
            return pb.tikv.ResolveLockResponse(region_error=problem)
        self._cluster.resolved.append(request)
        for key in request.keys:
            lock = self._cluster.locks.get(key)
            if lock is not None and lock.lock_version == request.start_version:
                del self._cluster.locks[key]
        return pb.tikv.ResolveLockResponse()

"""Serve change data from the store of the stand-in TiKV, with accidents for its subscribers.

Every store of the cluster serves it on its own port; regions move between stores. What TiKV
promises is kept through all accidents: each change with a commit_ts at or below a subscription's
resolved timestamp has been sent before on the same stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc

from sluice.devstack.tidb.change_streams import Stream, Subscription
from sluice.devstack.tidb.mvcc_records import Applied
from sluice.devstack.tidb.regions import Region, RegionMap
from sluice.devstack.tidb.store import Store
from sluice.tidb import pb
from sluice.tidb.codec.memcomparable import decode_bytes, encode_bytes

FEATURES_KEY, MULTIPLEXING = "features", "stream-multiplexing"
_MAX_PENDING_SCANS = 10_000
_SINK_QUOTA_BYTES = 512 << 20
_BATCHED_SINCE, _CLUSTER_ID_SINCE = (4, 0, 8), (5, 3, 0)
_REPEATED_COMMANDS = 64


class ChangeData:
    """Change data of the whole cluster, on its event loop; a store serves `service(store_id)`."""

    def __init__(self, cluster_id: int, store: Store, regions: RegionMap) -> None:
        self.cluster_id = cluster_id
        self.store, self.regions = store, regions
        self.max_ts = 0
        """Largest timestamp that was resolved; calculated commit timestamps are above it."""
        self.busy_registrations = 0
        """Number of the next registrations that are refused, because TiKV is busy."""
        self.repeated_commands = 0
        """Number of the latest commands sent once more to a new subscription before its scan."""
        self.shaken: random.Random | None = None
        """Makes resolved timestamps go back on their way to clients, now and then."""
        self.quota_bytes = _SINK_QUOTA_BYTES
        self.scans_may_run = asyncio.Event()
        self.scans_may_run.set()
        self._streams: dict[Stream, int] = {}
        self._by_region: dict[int, list[Subscription]] = {}
        self._latest: deque[list[Applied]] = deque(maxlen=_REPEATED_COMMANDS)
        store.listen(self._take)

    def service(self, store_id: int) -> grpc.GenericRpcHandler:
        """Return the ChangeData service of a store."""

        def handler(*, is_v2: bool) -> grpc.RpcMethodHandler:
            async def feed(requests: Any, context: Any) -> AsyncIterator[bytes]:
                async for message in self._feed(store_id, requests, context, is_v2=is_v2):
                    yield message

            return grpc.stream_stream_rpc_method_handler(
                feed, request_deserializer=pb.cdc.ChangeDataRequest.FromString
            )

        methods = {"EventFeed": handler(is_v2=False), "EventFeedV2": handler(is_v2=True)}
        return grpc.method_handlers_generic_handler("cdcpb.ChangeData", methods)

    def advance(self, ts: int) -> None:
        """Send resolved timestamps made of `ts`, which PD gave out just now."""
        self.max_ts = max(self.max_ts, ts)
        for stream in list(self._streams):
            stream.send_resolved(ts, self._on_its_way)

    @property
    def has_streams(self) -> bool:
        """Return whether any client listens."""
        return bool(self._streams)

    def subscriptions(self, region_id: int | None = None) -> list[Subscription]:
        """Return those of a region, or all."""
        found = (
            self._by_region.values() if region_id is None else [self._by_region.get(region_id, [])]
        )
        return [each for subscriptions in found for each in subscriptions]

    # ---- accidents ------------------------------------------------------------------------------

    def split(self, raw_key: bytes) -> None:
        """Cut a region in two."""
        whole = self.regions.split(raw_key)
        if whole is not None:
            halves = [self.regions.before(encode_bytes(raw_key)), self.regions.by_id(whole.id)]
            self._end(whole.id, _epoch_not_match([half for half in halves if half is not None]))

    def merge(self, region_id: int) -> None:
        """Merge a region into the next one, if there is one on the same store."""
        source = self.regions.by_id(region_id)
        behind = self.regions.at(source.end) if source is not None and source.end else None
        if source is None or behind is None or behind.store_id != source.store_id:
            return
        self.regions.merge(region_id)
        merged = self.regions.by_id(behind.id)
        assert merged is not None
        self._end(source.id, _epoch_not_match([]))
        self._end(behind.id, _epoch_not_match([merged]))

    def transfer(self, region_id: int, store_id: int, *, is_known: bool = True) -> None:
        """Move a region's leader; `is_known`: whether the old one knows where it went."""
        if self.regions.transfer(region_id, store_id) is not None:
            self._end(region_id, self._not_leader(region_id, is_known=is_known))

    def break_streams(self, store_id: int | None = None) -> None:
        """Break the connections to a store, or to all; what was on its way is lost."""
        for stream, each in list(self._streams.items()):
            if store_id in (None, each):
                stream.break_off(grpc.StatusCode.UNAVAILABLE, "Stream removed (Socket closed)")

    def congest(self, region_id: int) -> None:
        """End a region's subscriptions because too much waits to be sent."""
        self._end(region_id, pb.cdc.Error(congested=pb.cdc.Congested(region_id=region_id)))

    def silence(self, region_id: int) -> None:
        """Let a region's subscriptions hang: no events, no resolved timestamps, no error."""
        for each in self.subscriptions(region_id):
            each.is_silent = True

    # ---- streams --------------------------------------------------------------------------------

    async def _feed(
        self, store_id: int, requests: Any, context: Any, *, is_v2: bool
    ) -> AsyncIterator[bytes]:
        features = [
            name
            for key, value in context.invocation_metadata() or ()
            if is_v2 and key == FEATURES_KEY
            for name in value.split(",")
            if name
        ]
        if unknown := [name for name in features if name != MULTIPLEXING]:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"unknown features: {unknown}")
        stream = Stream(self._forget, is_multiplexing=MULTIPLEXING in features)
        self._streams[stream] = store_id
        tasks = [
            asyncio.create_task(self._read(stream, store_id, requests)),
            asyncio.create_task(stream.run_scans(self.scans_may_run)),
        ]
        try:
            async for message in stream.messages(context):
                yield message
        finally:
            stream.break_off(grpc.StatusCode.CANCELLED, "the client has gone")
            del self._streams[stream]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, stream: Stream, store_id: int, requests: Any) -> None:
        is_first = True
        with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
            async for request in requests:
                if is_first:
                    stream.is_batching = _version(request.header.ticdc_version) >= _BATCHED_SINCE
                    is_first = False
                if request.WhichOneof("request") == "deregister":
                    self._deregister(stream, request)
                else:
                    self._register(stream, store_id, request)
        stream.break_off(grpc.StatusCode.OK, "")

    def _deregister(self, stream: Stream, request: Any) -> None:
        for each in list(stream.subscriptions.values()):
            if each.request_id == request.request_id and request.region_id in (0, each.region.id):
                each.end_with(_region_not_found(each.region.id))

    def _register(self, stream: Stream, store_id: int, request: Any) -> None:
        error = self._refusal(stream, store_id, request)
        if error is not None:
            event = pb.cdc.Event(
                region_id=request.region_id, request_id=request.request_id, error=error
            )
            stream.put(event, 0)
            return
        region = self.regions.by_id(request.region_id)
        assert region is not None  # else refused
        start = max(_raw(region.start), _raw(request.start_key))
        end = min([each for each in (_raw(region.end), _raw(request.end_key)) if each], default=b"")
        made = Subscription(
            stream,
            request.request_id,
            region,
            start,
            end,
            request.checkpoint_ts,
            request.filter_loop,
        )
        rows = self.store.history(start, end, request.checkpoint_ts)
        stream.add(made)
        self._by_region.setdefault(region.id, []).append(made)
        # What TiKV applies between the registration and the snapshot is in the scan, too.
        for command in (
            list(self._latest)[-self.repeated_commands :] if self.repeated_commands else ()
        ):
            made.send(row for row in command if start <= row.key and (not end or row.key < end))
        for row in rows:
            made.track(row)
        stream.scan(made, rows)

    def _refusal(self, stream: Stream, store_id: int, request: Any) -> pb.cdc.Error | None:
        """Return why a registration is refused, in the order in which TiKV checks."""
        header, region_id = request.header, request.region_id
        is_checked = _version(header.ticdc_version) >= _CLUSTER_ID_SINCE
        if is_checked and header.cluster_id != self.cluster_id:
            mismatch = pb.cdc.ClusterIDMismatch(current=self.cluster_id, request=header.cluster_id)
            return pb.cdc.Error(cluster_id_mismatch=mismatch)
        pending = sum(len(each.scans) for each, at in self._streams.items() if at == store_id)
        if self.busy_registrations or pending >= _MAX_PENDING_SCANS:
            self.busy_registrations = max(0, self.busy_registrations - 1)
            busy = pb.errorpb.ServerIsBusy(reason="too many pending incremental scans")
            return pb.cdc.Error(server_is_busy=busy)
        region = self.regions.by_id(region_id)
        if region is None:
            return _region_not_found(region_id)
        if stream.find(request.request_id, region_id) is not None:
            return pb.cdc.Error(duplicate_request=pb.cdc.DuplicateRequest(region_id=region_id))
        if request.region_epoch.version != region.version:
            return pb.cdc.Error(epoch_not_match=self.regions.epoch_not_match(region))
        if region.store_id != store_id:
            return self._not_leader(region_id, is_known=True)
        return None

    def _not_leader(self, region_id: int, *, is_known: bool) -> pb.cdc.Error:
        error = pb.errorpb.NotLeader(region_id=region_id)
        region = self.regions.by_id(region_id)
        if is_known and region is not None:
            error.leader.CopyFrom(region.peer())
        return pb.cdc.Error(not_leader=error)

    def _take(self, rows: list[Applied]) -> None:
        """Send what a command changed to the subscriptions of its regions."""
        self._latest.append(rows)
        if not self._by_region:
            return
        by_region: dict[int, list[Applied]] = {}
        for row in rows:
            by_region.setdefault(self.regions.at(encode_bytes(row.key)).id, []).append(row)
        for region_id, found in by_region.items():
            for each in list(self._by_region.get(region_id, ())):
                each.take(found)
                if each.stream.queued_bytes > self.quota_bytes:
                    each.end_with(pb.cdc.Error(congested=pb.cdc.Congested(region_id=region_id)))

    def _end(self, region_id: int, error: pb.cdc.Error) -> None:
        for each in self.subscriptions(region_id):
            each.end_with(error)

    def _forget(self, ended: Subscription) -> None:
        found = self._by_region.get(ended.region.id, [])
        if ended in found:
            found.remove(ended)
        if not found:
            self._by_region.pop(ended.region.id, None)

    def _on_its_way(self, ts: int) -> int:
        """Return the resolved timestamp as it arrives."""
        if self.shaken is None or self.shaken.random() < 0.5:
            return ts
        return self.shaken.choice((0, ts >> 1, max(0, ts - (self.shaken.randrange(60_000) << 18))))


def regions_of(changes: ChangeData) -> Iterator[dict[str, Any]]:
    """Describe the regions and their subscriptions, for the control port."""
    for region in changes.regions.between(b"", b""):
        yield {
            "id": region.id,
            "store": region.store_id,
            "version": region.version,
            "start": region.start.hex(),
            "end": region.end.hex(),
            "subscriptions": len(changes.subscriptions(region.id)),
        }


def _epoch_not_match(regions: list[Region]) -> pb.cdc.Error:
    current = [region.meta() for region in regions]
    return pb.cdc.Error(epoch_not_match=pb.errorpb.EpochNotMatch(current_regions=current))


def _region_not_found(region_id: int) -> pb.cdc.Error:
    return pb.cdc.Error(region_not_found=pb.errorpb.RegionNotFound(region_id=region_id))


def _version(text: str) -> tuple[int, ...]:
    """Parse a version; what is no version counts as the oldest."""
    parts = text.partition("-")[0].split(".")
    return tuple(map(int, parts)) if len(parts) == 3 and all(p.isdigit() for p in parts) else (0,)


def _raw(encoded: bytes) -> bytes:
    return decode_bytes(encoded)[0] if encoded else b""


Accident = Callable[[ChangeData, dict[str, Any]], None]

ACCIDENTS: dict[str, Accident] = {
    "split": lambda changes, given: changes.split(bytes.fromhex(given["key"])),
    "merge": lambda changes, given: changes.merge(int(given["region"])),
    "transfer": lambda changes, given: changes.transfer(
        int(given["region"]), int(given["store"]), is_known=bool(given.get("is_known", True))
    ),
    "break": lambda changes, given: changes.break_streams(given.get("store")),
    "congest": lambda changes, given: changes.congest(int(given["region"])),
    "silence": lambda changes, given: changes.silence(int(given["region"])),
    "busy": lambda changes, given: setattr(changes, "busy_registrations", int(given["count"])),
    "repeat": lambda changes, given: setattr(changes, "repeated_commands", int(given["commands"])),
    "shake": lambda changes, given: setattr(
        changes, "shaken", None if given.get("seed") is None else random.Random(given["seed"])
    ),
    "hold-scans": lambda changes, given: (
        changes.scans_may_run.clear() if given.get("on", True) else changes.scans_may_run.set()
    ),
}
"""Accidents that the control port can bring about for subscribers, by name.

See the methods and attributes of ChangeData.
"""
